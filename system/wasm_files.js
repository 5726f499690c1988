// What WebAssembly has in place of files: where a checkpoint comes from, with its size, if that is
// known, its pieces in order, and whether they were in the browser's cache.

async function* pieces_of(stream, signal) {
  const reader = stream.getReader(), stop = () => reader.cancel(signal.reason).catch(() => {});
  signal?.addEventListener("abort", stop);
  try {
    for (let next; !(next = await reader.read()).done; ) yield next.value;
    signal?.throwIfAborted();
  } finally {
    signal?.removeEventListener("abort", stop);
    reader.cancel().catch(() => {});  // what somebody has stopped reading
  }
}

const mark_of = (response) => response.headers.get("etag") ?? response.headers.get("last-modified");

function answered(response, url = response.url) {
  const { ok, status, statusText, headers } = response;
  if (!ok) throw new HeadsError("network", `${url}: the server says ${status} ${statusText}`);
  if (!headers.get("content-type")?.startsWith("text/html")) return response;
  throw new HeadsError("network", `${url}: the server gives a page of HTML; is the address right?`);
}

const ask = async (url, options) => answered(await fetch(url, options), url);

const MOST_TRIES = 5;  // one after another in which no byte came

// The bytes of an address. Where the connection breaks, the rest is asked for; the file must then
// still be the same.
async function* pieces_of_address(url, signal) {
  let at = 0, mark;
  for (let tries = 0; ; ) {
    try {
      const headers = at ? { Range: `bytes=${at}-` } : {};
      const response = await ask(url, { signal, headers });
      if (at && mark_of(response) !== mark) {
        throw new HeadsError("network", `${url}: the file changed while it was read`);
      }
      mark = mark_of(response);
      let passed = response.status === 206 ? at : 0;  // not every server knows ranges
      for await (const piece of pieces_of(response.body, signal)) {
        const more = piece.subarray(Math.min(piece.length, Math.max(0, at - passed)));
        passed += piece.length;
        if (!more.length) continue;
        [at, tries] = [at + more.length, 0];
        yield more;
      }
      const said = Number(response.headers.get("content-range")?.split("/")[1]) || 0;
      if (at >= said) return;
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof HeadsError) throw error;
      if (++tries > MOST_TRIES) {
        throw new HeadsError("network", `${url}: ${error.message}`, { cause: error });
      }
      await new Promise((done) => { setTimeout(done, 100 * 2 ** tries); });
    }
  }
}

// The same, kept in the Cache API ("heads.c") under the mark with which it came.
async function cached(url, { signal, cache = true }) {
  const pieces = pieces_of_address(url, signal);
  const store = cache && globalThis.caches && /^https?:$/.test(url.protocol)
    ? await caches.open("heads.c").catch(() => null) : null;  // some places have none
  if (!store) return { pieces };
  const [found, head] = await Promise.all([store.match(url),
    fetch(url, { method: "HEAD", signal }).catch(() => null)]);  // null: it is out of reach
  signal?.throwIfAborted();
  const mark = head?.ok ? mark_of(head) : null;
  if (found && (!head || mark === mark_of(found))) {
    return { pieces: pieces_of(found.body, signal), cached: true };
  }
  return { pieces: mark ? kept(store, url, mark, pieces) : pieces };
}

async function* kept(store, url, mark, pieces) {
  const { readable, writable } = new TransformStream(), writer = writable.getWriter();
  let room = true, whole = false;  // a cache that is full only means that nothing is kept
  const none = () => { room = false; };
  const put = store.put(url, new Response(readable, { headers: { etag: mark } })).catch(none);
  writer.closed.catch(none);
  try {
    for await (const piece of pieces) {
      if (room) await Promise.race([writer.write(piece.slice()).catch(none), put]);
      yield piece;
    }
    whole = true;
  } finally {
    await (whole ? writer.close() : writer.abort()).catch(none);
    await put;
  }
}

function address_of(given) {
  const { process, location } = globalThis;
  const base = location?.href ?? (process && of_node("url").pathToFileURL(process.cwd() + "/"));
  try {
    return new URL(given, base);
  } catch {
    throw new HeadsError("argument", `open: ${given} is no address`);
  }
}

const EXPECTED = "open: expected a File, a Blob, bytes, a Response, a ReadableStream or an address, " +
  "found ";

async function source_of(given, options) {
  const { signal } = options;
  if (typeof given === "string" || given instanceof URL) {
    const url = address_of(given);
    if (url.protocol !== "file:" || !globalThis.process) return cached(url, options);
    try {
      of_node("fs").accessSync(url);
      given = await of_node("fs").openAsBlob(url);
    } catch (error) {
      throw new HeadsError("network", `${url}: ${error.message}`, { cause: error });
    }
  }
  if (ArrayBuffer.isView(given) || Object.prototype.toString.call(given) === "[object ArrayBuffer]") {
    given = new Blob([given]);
  }
  if (given?.headers && given.body) {  // a Response
    return { pieces: pieces_of(answered(given).body, signal) };
  }
  if (given?.getReader) return { pieces: pieces_of(given, signal) };
  if (given?.stream) return { size: given.size, pieces: pieces_of(given.stream(), signal) };
  throw new HeadsError("argument", EXPECTED + Object.prototype.toString.call(given));
}

// A checkpoint says its own size; null: these are no checkpoint's first bytes, and the engine says
// what they are.
function size_said(head) {
  const magic = String.fromCharCode(...head.subarray(0, 8)) === "heads.c\0";
  return magic ? Number(new DataView(head.buffer).getBigUint64(16, true)) : null;
}

// Streams a source to where the engine wants it. tell is called with the bytes so far.
async function load({ size, pieces }, call, tell) {
  let head = new Uint8Array(0), bytes = 0, sent = null;
  const send = async (piece) => {
    await sent;
    const copy = piece.slice();
    bytes += copy.length;
    sent = call("piece", [copy], { transfer: [copy.buffer] });
    sent.catch(() => {});  // it is awaited by the next one
    tell(bytes, size);
  };
  for await (const piece of pieces) {
    if (!ArrayBuffer.isView(piece)) throw new HeadsError("argument", "open: a stream of no bytes");
    if (!head) await send(piece);
    else {
      head = new Uint8Array(await new Blob([head, piece]).arrayBuffer());
      if (head.length < 24) continue;
      const said = size_said(head);
      await call("reserve", [size ??= said ?? head.length]);
      await send(head);
      head = null;
      if (said === null) break;
    }
  }
  if (head) {
    await call("reserve", [head.length]);
    await send(head);
  }
  await sent;
  return bytes;
}
