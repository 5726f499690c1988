"""How the body of a request is read."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from .messages import Refused

MAX_BODY = 4 << 20
BODY_SECONDS = 60  # that a client has to send it
GONE = "the client went away"


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
    except ClientDisconnect:
        raise Refused(GONE, status=499) from None
    if size > MAX_BODY:
        raise Refused(f"a request has at most {MAX_BODY} bytes", status=413)
    return bytes(data)


async def read_body(http: HttpRequest) -> bytes:
    """A page of another site cannot send this content type: the browser asks us first, and gets no
    answer."""
    kind = http.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("content-type: expected application/json", status=415)
    try:
        return await asyncio.wait_for(_read(http), BODY_SECONDS)
    except asyncio.TimeoutError:
        message = f"the body did not come within {BODY_SECONDS} seconds"
        raise Refused(message, status=408) from None


def parsed(data: bytes) -> dict:
    try:
        body = json.loads(data.decode("utf-8"))
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}"[:300]) from None
    if not isinstance(body, dict):
        raise Refused("the body is no JSON object")
    return body
