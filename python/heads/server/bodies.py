"""How the body of a request is read."""

from __future__ import annotations

import asyncio
import json
import zlib

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from .messages import GONE, Refused

MAX_BODY = 4 << 20
BODY_SECONDS = 60  # that a client has to send it
DROPPED = "heads.dropped"  # in the scope of a request whose body is too large


async def _read(http: HttpRequest) -> bytes:
    """A body that is too large is read and dropped, within reason, since a client that still sends
    would not see the answer."""
    data, size = bytearray(), 0
    try:
        async for piece in http.stream():
            size += len(piece)
            if size <= MAX_BODY:
                data += piece
            elif size > 16 * MAX_BODY:
                break
            else:
                http.scope[DROPPED] = True
    except ClientDisconnect:
        raise Refused(GONE, status=499) from None
    if size > MAX_BODY:
        raise _too_large()
    return bytes(data)


def _too_large() -> Refused:
    return Refused(f"a request has at most {MAX_BODY} bytes", status=413)


def _unpacked(data: bytes, coding: str) -> bytes:
    """A body in the Content-Encoding that it says it has; no more of it than may be."""
    if coding in ("", "identity"):
        return data
    if coding != "gzip":
        raise Refused("content-encoding: expected gzip or identity", status=415)
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = unpacker.decompress(data, MAX_BODY + 1)
    except zlib.error as error:
        raise Refused(f"the body is not gzip: {error}") from None
    if len(found) > MAX_BODY:
        raise _too_large()
    if not unpacker.eof:
        raise Refused("the body is not gzip: it ends too early")
    return found


async def read_body(http: HttpRequest) -> bytes:
    """A page of another site cannot send this content type: the browser asks us first, and gets no
    answer."""
    kind = http.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("content-type: expected application/json", status=415)
    try:
        data = await asyncio.wait_for(_read(http), BODY_SECONDS)
    except asyncio.TimeoutError:
        message = f"the body did not come within {BODY_SECONDS} seconds"
        raise Refused(message, status=408) from None
    return _unpacked(data, http.headers.get("content-encoding", "").strip().lower())


def parsed(data: bytes) -> dict:
    try:
        body = json.loads(data.decode("utf-8"))
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}"[:300]) from None
    if not isinstance(body, dict):
        raise Refused("the body is no JSON object")
    return body
