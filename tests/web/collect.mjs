// What build/web/heads.js answers, as JSON, for test_web.py to compare with native answers.
//   node collect.mjs node|chrome|firefox|webkit LIBRARY PLAN.json OUT.json
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { basename, dirname } from "node:path";
import { pathToFileURL } from "node:url";

const [where, library, plan_path, out_path] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(plan_path, "utf8"));

// Runs in node, or in a page: it needs only globalThis.heads, the plan (with browser/live/engine.js
// as text) and named Blobs.
async function collect(plan, file) {
  const digest = async (arrays) => {
    const bytes = await new Blob(arrays).arrayBuffer();
    const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return Array.from(sum, (b) => b.toString(16).padStart(2, "0")).join("");
  };
  const told = async (model, prompt, options) => {
    const texts = [], generated = model.generate(prompt, options);
    for (let step; ; texts.push(step.value.text)) {
      step = await generated.next();
      if (step.done) return { text: texts.join(""), stopped: step.value };
    }
  };
  const out = { hashes: {}, refused: {} };
  const named = `kind = class extends Engine {  // by its kernels
    isa() { return this.zeroed(this.c.heads_workspace_isa(this.workspace)); }
  }`;
  if (plan.files.large) {
    const large = await heads.open(await file("large"), { context: 64 });
    const { logits } = await large.forward(await large.sequence(), plan.ids, { rows: 2 });
    return { large: await digest(logits) };
  }

  for (const name of plan.hashes) {
    const [weights, k_type, v_type] = name.split(" ");
    const { isa, n_threads } = plan;
    const options = { k_type, v_type, isa: isa ?? undefined, n_threads, chunk: 512, kind: named };
    const model = await heads.open(await file(weights), options);
    const sequence = await model.sequence();
    const { logits } = await model.forward(sequence, plan.ids, { rows: plan.ids.length });
    out.hashes[name] = await digest(logits);
    out.isa = await model.isa();
    out.n_threads = model.shape.n_threads;
    await model.close();
  }

  const picking = plan.looking + `kind = class extends Looking {
    accept(sampler, id) { this.c.heads_sampler_accept(this.of("sampler", sampler), id); }
    pick(sampler, logits) {
      return this.c.heads_sampler_pick(this.of("sampler", sampler), this.put(logits));
    }
    async slow() { await new Promise((done) => setTimeout(done, 50)); return "slow"; }
    async fast() { return "fast"; }
    odd() { return () => 1; }
  }`;
  const stories = await heads.open(await file("stories"), { most: 8192, kind: picking });
  out.by_number = await Promise.all([stories.slow(), stories.fast()]);
  out.odd = await stories.odd().catch((error) => [error.code, typeof error.message]);
  out.shape = stories.shape;
  out.tokens = Array.from(await stories.tokenize(plan.text));
  out.stories = [];
  for (const [prompt, options] of plan.stories) out.stories.push(await told(stories, prompt, options));
  const earlier = stories.generate(plan.prompt, {});
  await earlier.next();
  out.stories.push(await told(stories, ...plan.stories[0]));
  out.replaced = await earlier.next().catch((error) => error.message);
  const sequence = await stories.sequence();
  out.decoded = await stories.decode(out.tokens);
  const first = await stories.forward(sequence, out.tokens, { attention: true });
  out.attention = first.attention.map((row) => ({ ...row, weights: Array.from(row.weights) }));
  await stories.rewind(sequence, 1);
  const again = await stories.forward(sequence, out.tokens.slice(1));
  out.again = [await digest(first.logits), await digest(again.logits), again.attention.length];
  const sampler = await stories.sampler({ temperature: 0, repeat_penalty: 2 }), [row] = again.logits;
  out.picked = [await stories.pick(sampler, row), row.indexOf(Math.max(...row))];
  await stories.accept(sampler, out.picked[0]);
  out.picked.push(await stories.pick(sampler, row));
  const without = await stories.sequence();
  await stories.change(without, plan.off);
  const said = await stories.forward(without, out.tokens, { rows: out.tokens.length, lens: true });
  out.off = await digest(said.logits);
  out.lens = await digest(said.lens.map(({ logits }) => logits));
  out.lens_of = said.lens.map(({ layer, position }) => [layer, position]);
  out.likeliest = await stories.likeliest(said.logits.at(-1), 5);
  await stories.free("sampler", sampler);
  await stories.free("sequence", sequence);
  await stories.close();
  out.closed = await stories.tokenize("a").catch((error) => error.message);

  const counting = `kind = class extends Engine {  // the numbers that forward keeps
    keep() { return this.c.heads_keep(this.workspace, 1, 0); }
    kept(at) { return this.memory(Uint32Array, at, 2)[1]; }
  }`;
  const crowded = await heads.open(await file("stories"), { context: plan.context, kind: counting });
  const at = await crowded.keep();
  out.crowded = [];
  for (const [prompt, options] of plan.crowded) out.crowded.push(await told(crowded, prompt, options));
  out.kept = await crowded.kept(at);
  await crowded.close();

  const encoder = await heads.open(await file("encoder"));
  for (let i = 0; i < 3; i++) out.vectors = await digest(await encoder.embed(plan.texts));
  const talker = await heads.open(await file("plain"));
  out.conversation = Array.from(await talker.conversation(plan.messages));
  out.answers = [];
  for (const messages of plan.talks) out.answers.push(await told(talker, messages, { max_tokens: 12 }));
  const translator = await heads.open(await file("translator"));
  out.translations = [];
  for (const [prompt, options] of plan.translations) out.translations.push(await told(translator, prompt, options));

  const plain = (found) => (typeof found === "object" ? Object.fromEntries(Object.entries(found)
    .map(([key, one]) => [key, plain(one)])) : found);  // lists of floats become objects, too
  out.encoders = [];
  for (const [name, method, args] of plan.encoders) {
    const model = await heads.open(await file(name));
    out.encoders.push(await model[method](...args).then(plain, (error) => error.message));
    model.close();
  }

  for (const [name, [kind, ask]] of Object.entries(plan.refused))
    try {
      const model = await heads.open(await file(kind), ask.open);
      if (ask.call) await model[ask.call[0]](...ask.call.slice(1));
      if (ask.generate) await told(model, ...ask.generate);
      out.refused[name] = null;
    } catch (error) {
      out.refused[name] = error.message;
    }
  return out;
}

async function in_node() {
  globalThis.crypto ??= (await import("node:crypto")).webcrypto;
  globalThis.heads = (await import(pathToFileURL(library))).default;
  return collect(plan, (name) =>
    Object.assign(new Blob([readFileSync(plan.files[name])]), { name: basename(plan.files[name]) }));
}

// The page from a server that isolates it, which threads need.
function serve() {
  const kinds = { html: "text/html", js: "text/javascript" };
  const server = createServer(({ url }, response) => {
    const [, given] = /^\/files\/(\d+)$/.exec(url) ?? [];
    if (given) return response.end(readFileSync(Object.values(plan.files)[given]));
    const kind = kinds[url.split(".").pop()];
    response.writeHead(kind ? 200 : 404, { "Content-Type": kind ?? "text/plain",
      "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" });
    return response.end(kind && readFileSync(dirname(plan.page) + url));
  });
  return new Promise((resolve) =>
    server.listen(0, () => resolve(`http://localhost:${server.address().port}/${basename(plan.page)}`)));
}

// WebKit's driver gives no files to pages, so that the server does.
async function in_webkit() {
  const { launch, open } = await import("../browser/webkit.mjs"), running = await launch();
  try {
    const page = await open(running, await serve()), names = Object.keys(plan.files);
    return await page.evaluate(`(${collect})(${JSON.stringify(plan)}, async (name) =>
      (await fetch("/files/" + ${JSON.stringify(names)}.indexOf(name))).blob())`);
  } finally {
    await running.browser.close();
  }
}

// From disk, unless isolated: there the page has no address of its own, so files come by an input,
// as users give them.
async function in_browser() {
  const { launch, open } = await import("../browser/browsers.mjs");
  const running = await launch(where, "light", ".");
  try {
    const page = await open(running, plan.isolated ? await serve() : plan.page);
    const input = await page.$("input");  // the example does what it says
    if (plan.example) await input.uploadFile(plan.files.stories);
    if (plan.example) await page.waitForFunction((story) => document.querySelector("#story").textContent === story,
      { timeout: 60000 }, plan.example);
    await input.evaluate((element) => { element.multiple = true; element.onchange = null; });
    await input.uploadFile(...Object.values(plan.files));
    const names = Object.fromEntries(Object.entries(plan.files).map(([name, path], i) => [name, i]));
    const source = `(${collect})(${JSON.stringify(plan)}, (name) =>
      document.querySelector("input").files[${JSON.stringify(names)}[name]])`;
    const out = await page.evaluate(source);
    const said = page.said.filter((line) => !line.includes("404"));  // the server has no icon
    if (said.length) throw new Error(said.join("\n"));
    return out;
  } finally {
    await running.browser.close();
  }
}

writeFileSync(out_path, JSON.stringify(await ({ node: in_node, webkit: in_webkit }[where] ?? in_browser)()));
process.exit();
