// The speed of the engine in Chromium and in node beside ./run and, in Chromium, wllama (llama.cpp in
// pages), one thread each, in turn: a prompt, and 64 tokens after it. Medians of tokens per second, and the range; with --json
// those of each round.
//
//   npm install --prefix DIR @wllama/wllama@3.13.0
//   node tests/reference/compare_wllama.mjs DIR MODEL.gguf MODEL.bin [ROUNDS] [--json]
//
// MODEL.gguf is Q8_0, MODEL.bin the same in q8 (export.py); it needs `make run web`, Chromium and
// tests/browser's packages, and wants a machine without neighbours.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { launch, open } from "../browser/browsers.mjs";
import { open as opened } from "../../build/web/heads.mjs";

const [folder, gguf, bin, rounds = 7] = process.argv.slice(2).filter((word) => word !== "--json");
const root = new URL("../../", import.meta.url).pathname, wllama = folder + "/node_modules/@wllama/wllama/esm/";
const files = { "/": root + "build/web/example.html", "/heads.js": root + "build/web/heads.js", "/model.bin": bin,
  "/model.gguf": gguf, "/wllama.js": wllama + "index.js", "/wllama.wasm": wllama + "wasm/wllama.wasm" };
const kinds = { js: "text/javascript", wasm: "application/wasm", "": "text/html" };
const server = createServer(({ url }, response) => {
  response.writeHead(files[url] ? 200 : 404, { "Content-Type": kinds[url.split(/[./]/).pop()] ?? "text/plain" });
  response.end(files[url] && readFileSync(files[url]));
});
await new Promise((resolve) => server.listen(0, resolve));
const running = await launch("chrome", "light", ".");
const page = await open(running, `http://localhost:${server.address().port}/`);

await page.evaluate(async () => {
  const blob = async (url) => (await fetch(url)).blob();
  globalThis.ours = await heads.open(await blob("/model.bin"));
  const { Wllama } = await import("/wllama.js");
  globalThis.theirs = new Wllama({ default: "/wllama.wasm" }, { suppressNativeLog: true });
  await theirs.loadModel([await blob("/model.gguf")], { n_ctx: 1024, n_threads: 1, n_gpu_layers: 0 });
});
const in_node = await opened(bin, { n_threads: 1 });

// Runs in node or in a page.
async function rates_of(model, prompt) {
  const n = (await model.tokenize(prompt)).length, times = [performance.now()];
  for await (const token of model.generate(prompt, { max_tokens: 64, temperature: 0 })) times.push(performance.now());
  return [n / (times[1] - times[0]), (times.length - 2) / (times.at(-1) - times[1])].map((x) => 1e3 * x);
}
const measures = {
  run(prompt) {
    const args = [bin, "-t", "1", "-p", prompt, "-n", "64", "--temp", "0"];
    const said = execFileSync("sh", ["-c", '"$0" "$@" 2>&1', root + "run", ...args], { encoding: "utf8" });
    return said.match(/prompt \d+ tokens, ([\d.]+) tok\/s; generated \d+, ([\d.]+)/).slice(1).map(Number);
  },
  heads: (prompt) => page.evaluate(`(${rates_of})(ours, ${JSON.stringify(prompt)})`),
  node: (prompt) => rates_of(in_node, prompt),
  wllama: (prompt) => page.evaluate(async (prompt) => {
    const options = { prompt, max_tokens: 64, temperature: 0, cache_prompt: false };
    const { timings } = await theirs.createCompletion(options);
    return [timings.prompt_per_second, timings.predicted_per_second];
  }, prompt),
};
const story = readFileSync(root + "examples/story.txt", "utf8").slice(0, 600), all = { run: [], heads: [], node: [], wllama: [] };
for (let round = 0; round <= rounds; round++)  // the first warms up; each prompt begins in its own way
  for (const name in measures) {
    all[name][round - 1] = await measures[name](`${round} times. ${story}`);
    console.error(round, name, ...all[name][round - 1].map((rate) => rate.toPrecision(3)));
  }
await running.browser.close();

const rates = {};  // what: engine: tokens per second of each round
for (const [i, what] of ["prompt", "decode"].entries())
  rates[what] = Object.fromEntries(Object.entries(all).map(([name, pairs]) => [name, pairs.map((pair) => pair[i])]));
if (process.argv.includes("--json")) {
  console.log(JSON.stringify(rates));
  process.exit();
}
const spread = (numbers) => {
  const sorted = [...numbers].sort((a, b) => a - b), show = (x) => x.toPrecision(3);
  return `${show(sorted[sorted.length >> 1])} (${show(sorted[0])} to ${show(sorted.at(-1))})`;
};
for (const [what, of] of Object.entries(rates)) {
  for (const name in of) console.log(`${what} ${name}: ${spread(of[name])} tok/s`);
  for (const [one, other] of [["heads", "run"], ["heads", "wllama"], ["node", "run"], ["node", "wllama"]])
    console.log(`${what} ${one} / ${other}: ${spread(of[one].map((x, r) => x / of[other][r]))}`);
}
process.exit();
