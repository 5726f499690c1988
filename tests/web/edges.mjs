// What heads.js says and does at its edges, as JSON, for test_web_edges.py.
//   node edges.mjs node|chrome|firefox|webkit
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const root = new URL("../../", import.meta.url).pathname, [where] = process.argv.slice(2);
const stories = readFileSync(root + "models/stories.bin"), asked = [];
const policies = {
  "/": "",
  "/noblob": "script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'",
  "/types": "require-trusted-types-for 'script'; trusted-types heads.js",
};

// Serves pages, the package, and a checkpoint: whole, or in answers that break off.
const server = createServer(({ url, method, headers }, response) => {
  const name = url.split("/").pop(), range = Number(headers.range?.match(/\d+/)[0] ?? 0);
  const head = { "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp", "Access-Control-Allow-Origin": "*" };
  if (method === "GET") asked.push(url + (headers.range ? " " + headers.range : ""));
  if (url in policies) {
    if (policies[url]) head["Content-Security-Policy"] = policies[url];
    response.writeHead(200, { ...head, "Content-Type": "text/html" });
    return response.end('<!doctype html><title>x</title><script src="/heads.js"></script>');
  }
  if (name === "heads.js" || name === "heads-worker.js") {
    response.writeHead(200, { ...head, "Content-Type": "text/javascript" });
    return response.end(readFileSync(root + "build/web/" + name));
  }
  if (name !== "stories.bin") return response.writeHead(404, head).end();
  const changing = url.startsWith("/changing/"), plain = url.startsWith("/rangeless/");
  head.ETag = changing ? `"${asked.length}"` : '"v1"';
  if (plain) return response.writeHead(200, head).end(method === "HEAD" ? "" : stories);
  head["Content-Length"] = stories.length - range;
  if (range) head["Content-Range"] = `bytes ${range}-${stories.length - 1}/${stories.length}`;
  response.writeHead(range ? 206 : 200, head);
  if (method === "HEAD") return response.end();
  const breaks = /broken|changing/.test(url) && range < 4e6;
  if (!breaks) return response.end(stories.subarray(range));
  return response.write(stories.subarray(range, range + 2e6), () =>
    setTimeout(() => response.destroy(), 50));
});
await new Promise((done) => { server.listen(0, "127.0.0.1", done); });
const base = `http://127.0.0.1:${server.address().port}`;

// Runs in node or in a page: it needs only globalThis.heads.
async function edges(base, browser) {
  const out = {}, { open } = heads, address = base + "/plain/stories.bin";
  const said = async (run) => {
    try {
      const answer = await run();
      return ["fine", answer instanceof Int32Array ? Array.from(answer) : answer ?? null];
    } catch (error) {
      return [error.code ?? error.name, error.message];
    }
  };
  const soon = (promise) => Promise.race([promise, new Promise((done) =>
    setTimeout(() => done(["hangs"]), 20000))]);
  const bytes = await (await fetch(address)).arrayBuffer(), n = bytes.byteLength;

  // ---- where a checkpoint comes from ----
  const reads = async (source, options) => {
    const model = await open(source, options);
    const ids = Array.from(await model.tokenize("a")), { cached } = model.source;
    const right = model.source.bytes === n;
    model.close();
    return [...ids, cached, right];
  };
  const whole = () => new Response(new Blob([bytes])).body;
  const seen = [];
  out.sources = {
    bytes: await said(() => reads(bytes)),
    view: await said(() => reads(new Uint8Array(bytes))),
    blob: await said(() => reads(new Blob([bytes]))),
    response: await said(async () => reads(await fetch(address))),
    stream: await said(() => reads(whole())),
    url: await said(() => reads(new URL(address), { progress: (one) => seen.push(one) })),
    again: await said(() => reads(address)),
    fresh: await said(() => reads(address, { cache: false })),
    broken: await said(() => reads(base + "/broken/stories.bin")),
    rangeless: await said(() => reads(base + "/rangeless/stories.bin")),
    changing: await said(() => reads(base + "/changing/stories.bin")),
    missing: await said(() => reads(base + "/none.bin")),
    page: await said(() => reads(base + "/")),
    number: await said(() => reads(42)),
    short: await said(() => reads(new Blob([bytes.slice(0, 3e6)]).stream())),
    empty: await said(() => reads(new Uint8Array(0))),
    gguf: await said(() => reads(new TextEncoder().encode("GGUF" + "\0".repeat(60)))),
  };
  out.progress = [seen.every(({ total }) => total === n), seen.at(-1).bytes === n];

  // ---- what is given ----
  const model = await open(bytes), text = await model.sequence();
  const first = (...args) => model.generate(...args).next();
  out.given = {};
  for (const [name, run] of Object.entries({
    fraction: () => model.forward(text, [1.7]),
    nan: () => model.forward(text, [NaN]),
    large: () => model.forward(text, [2 ** 32 + 1]),
    words: () => model.forward(text, "abc"),
    rows: () => model.forward(text, [1], { rows: 2.5 }),
    null_content: () => first([{ role: "user", content: null }]),
    list_content: () => first([{ role: "user", content: ["a"] }]),
    no_role: () => first([{ content: "a" }]),
    tool_choice: () => first([{ role: "user", content: "a" }], { tool_choice: "auto" }),
    role: () => first([{ role: "user", content: "a", tool_calls: [] }]),
    schema: () => first("a", { schema: {} }),
    unknown: () => first("a", { temprature: 1 }),
    temperature: () => first("a", { temperature: "hot" }),
    surrogate: () => model.tokenize("\ud800"),
    not_text: () => model.tokenize(null),
    context: () => open(bytes, { context: "big" }),
    threads: () => open(bytes, { n_threads: 1.5 }),
    option: () => open(bytes, { contxt: 5 }),
    kv: () => open(bytes, { k_type: "f64" }),
    clone: () => model.forward(text, [1], { rows: () => 1 }),
  })) out.given[name] = await said(run);
  out.bom = await said(async () => model.decode(await model.tokenize("\ufeffHi")));
  out.seed = await said(async () => (await first("a", { seed: 2n ** 62n })).value.id >= 0);

  // ---- handles, ends, and memory ----
  const other = await open(bytes, { n_threads: 1 }), theirs = await other.sequence();
  await model.free("sequence", text);
  out.freed = [await soon(said(() => model.free("sequence", text))),
    await soon(said(() => model.forward(text, [1]))),
    await soon(said(() => model.forward(theirs, [1]))),
    await soon(said(() => model.rewind("1", 0)))];
  const stop = new AbortController(), reason = new Error("enough");
  out.aborted = [];
  const endless = (async () => {
    const told = [];
    for await (const { id } of model.generate("Once", { max_tokens: 400, signal: stop.signal })) {
      told.push(id);
      if (told.length === 3) stop.abort(reason);
    }
  })();
  out.aborted.push(await said(() => endless));
  out.aborted.push(await said(() => model.tokenize("a", true, { signal: stop.signal })));
  out.aborted.push(await said(() => open(address, { signal: stop.signal })));
  const slow = new AbortController();
  const hanging = open(new ReadableStream({ start() {} }), { signal: slow.signal });
  setTimeout(() => slow.abort(reason), 300);
  out.aborted.push(await soon(said(() => hanging)));
  for await (const { id } of model.generate("Once", { max_tokens: 400 })) if (id >= 0) break;
  out.left = await said(() => model.tokenize("a"));
  // Every call that is asked with an abort that has come, or that comes while it runs.
  const gone = { signal: stop.signal }, words = [{ role: "user", content: "a" }];
  out.signals = {};
  for (const [name, run] of Object.entries({
    decode: (o) => model.decode([1], o), conversation: (o) => model.conversation(words, o),
    embed: (o) => model.embed(["a"], o), classify: (o) => model.classify(["a"], o),
    rank: (o) => model.rank("a", ["b"], o), labels: (o) => model.labels(o),
    sequence: (o) => model.sequence(o), rewind: (o) => model.rewind(theirs, 0, o),
    forward: (o) => other.forward(theirs, [5], o), free: (o) => model.free("sequence", theirs, o),
    generate: (o) => model.generate("a", o).next(), answer: (o) => model.generate(words, o).next(),
    open: (o) => open(bytes, o), response: (o) => open(new Response(bytes), o),
  })) out.signals[name] = (await soon(said(() => run(gone))))[1];
  const late = new AbortController();
  const running = said(() => other.forward(theirs, Array(300).fill(5), { signal: late.signal }));
  setTimeout(() => late.abort(reason), 5);
  out.late = [await soon(running), await soon(said(() => other.tokenize("a")))];
  await other.rewind(theirs, 0);

  // A text that is left: by return(), throw(), an error in the loop; and one that never began.
  const begun = model.generate("Once", { max_tokens: 9 }), again = () => model.generate("Once", { max_tokens: 1 });
  await begun.next();
  const ended = async (step) => (({ done, value }) => [done, value ?? null])(await step);
  out.iterators = [await ended(begun.return("over")), await ended(begun.next()),
    await ended(again().return(1))];
  const thrown = model.generate("Once", { max_tokens: 9 });
  await thrown.next();
  out.iterators.push(await said(() => thrown.throw(reason)), await ended(thrown.next()));
  out.iterators.push(await said(async () => {
    for await (const { id } of model.generate("Once", { max_tokens: 9 })) throw new RangeError(typeof id);
  }), (await again().next()).done);

  // Models share what was compiled.
  const counted = WebAssembly.compile;
  let compiled = 0;
  WebAssembly.compile = (...args) => counted(...args, compiled++);
  for (const more of await Promise.all([1, 2, 3].map(() => open(bytes, { n_threads: 1 })))) more.close();
  WebAssembly.compile = counted;
  out.compiled = compiled;

  const waits = said(() => model.forward(theirs, Array(300).fill(5)));
  model.close();
  out.closed = [await soon(waits), await said(() => model.tokenize("a"))];
  let ticks = 0;
  const timer = setInterval(() => ticks++, 1);
  await other.forward(theirs, Array(200).fill(5));
  clearInterval(timer);
  out.ticks = ticks > 2;
  other.close();

  // All memory is taken, and a pass of several threads wants room for rows of attention.
  const full = `kind = class extends Engine {
    fill() { for (let n = 2 ** 30; n >= 4096; n /= 2) while (this.c.malloc(n)); }
    trap() { this.c.heads_sequence_length(2 ** 32 - 8); }
  }`;
  const crowded = await open(bytes, { n_threads: 3, kind: full, context: 512 });
  const long = await crowded.sequence(), ids = Array(300).fill(5);
  await crowded.forward(long, ids);
  await crowded.rewind(long, 0);
  await crowded.fill();
  out.full = [await soon(said(() => crowded.forward(long, ids, { attention: true }))),
    await soon(said(() => crowded.tokenize("a".repeat(1e6))))];
  const two = [soon(said(() => crowded.trap())), soon(said(() => crowded.tokenize("a")))];
  out.trapped = [...await Promise.all(two), await soon(said(() => crowded.tokenize("a")))];
  crowded.close();
  const kinds = await said(() => open(bytes, { kind: "kind = ;" }));
  out.kind = kinds[0];
  const none = await said(() => open(bytes, { n_threads: 1, workerURL: base + "/none.js" }));
  out.worker = browser ? none : null;
  return out;
}

async function in_node() {
  globalThis.heads = await import("../../build/web/heads.mjs");
  return edges(base, false);
}

async function in_browser() {
  const { launch, open } = await import(`../browser/${where === "webkit" ? where : "browsers"}.mjs`);
  const running = await launch(where, "light", ".");
  try {
    const page = await open(running, base + "/");
    const out = await page.evaluate(`(${edges})("${base}", true)`);
    out.policies = {};
    for (const path of ["/noblob", "/types"]) {
      const strict = await open(running, base + path);
      for (const workerURL of [undefined, "/heads-worker.js"]) {
        out.policies[path + (workerURL ?? "")] = await strict.evaluate(async (url) => {
          try {
            const options = { n_threads: 1, ...(url && { workerURL: url }) };
            const model = await heads.open("/plain/stories.bin", options);
            return Array.from(await model.tokenize("a"));
          } catch (error) {
            return [error.code, error.message];
          }
        }, workerURL);
      }
    }
    return out;
  } finally {
    await running.browser.close();
  }
}

const out = await (where === "node" ? in_node() : in_browser());
console.log(JSON.stringify({ ...out, asked }));
process.exit();
