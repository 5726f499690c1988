// The package as people install it: `npm pack`, the tarball in a bundler or a runtime, and the story
// that it tells there. Needs `make web`, npm and the network.
//
//   node installed.mjs            one place, drawn by HEADS_SEED; HEADS_TESTS=all: all of them
//   node installed.mjs vite8 deno

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync }
  from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { launch, open } from "./browsers.mjs";

const root = new URL("../../", import.meta.url).pathname, examples = root + "examples/web/";
const folder = mkdtempSync(join(tmpdir(), "heads-installed-"));
const at = (path) => join(folder, path);
const OPTIONS = '{ temperature: 0.8, top_p: 0.95, seed: 7, max_tokens: 40 }';
const SCRIPT = `const model = await open(ADDRESS);
let story = "Once upon a time";
for await (const { text } of model.generate(story, ${OPTIONS})) story += text;
`;
const PAGE = `import { open } from "heads.js";
async function tell() {
  ${SCRIPT.replace("ADDRESS", '"/stories.bin"')}  return story;
}
tell().catch((error) => error.message).then((story) => {
  document.body.append(Object.assign(document.createElement("p"), { id: "story", textContent: story }));
  document.body.dataset.done = "1";
});
`;
const PRINT = SCRIPT.replace("ADDRESS", JSON.stringify(root + "models/stories.bin")) +
  "model.close();\nconsole.log(story);\n";
const REACT = `import { createRoot } from "react-dom/client";
import { StrictMode } from "react";
import { Story } from "./react.jsx";
createRoot(document.getElementById("root")).render(<StrictMode>
  <Story address="/stories.bin" prompt="Once upon a time" /></StrictMode>);
`;
const HTML = (script) => `<!DOCTYPE html><title>x</title><body><div id="root"></div>
<script type="module" src="${script}"></script>`;

const run = (command, ...args) => execFileSync(command, args,
  { cwd: folder, stdio: ["ignore", "pipe", "pipe"], encoding: "utf8", timeout: 240000 });
const write = (files) => Object.entries(files).forEach(([path, text]) => {
  mkdirSync(join(at(path), ".."), { recursive: true });
  writeFileSync(at(path), text);
});
const install = (...packages) => run("npm", "install", "--no-save", "--no-audit", "--no-fund",
  "--silent", ...readdirSync(folder).filter((name) => name.endsWith(".tgz")).map(at), ...packages);
const npx = (...command) => run("npx", "--no-install", ...command);

const vite = (version) => ({ tool: [`vite@${version}`], files: { "index.html": HTML("/main.js"),
  "main.js": PAGE }, build: () => npx("vite", "build"), serves: "dist" });
const PLACES = {
  vite5: vite("5.4.21"),
  vite6: vite("6.4.6"),
  vite7: vite("7.3.8"),
  vite8: vite("8.3.8"),
  webpack: { tool: ["webpack@5.113.0", "webpack-cli@7.3.1"], files: { "src/index.js": PAGE,
    "dist/index.html": HTML("main.js") }, build: () => npx("webpack", "--mode", "production"),
  serves: "dist" },
  esbuild: { tool: ["esbuild@0.28.2"], files: { "main.js": PAGE, "dist/index.html": HTML("main.js") },
    build: () => npx("esbuild", "main.js", "--bundle", "--minify", "--target=es2020", "--keep-names",
      "--outfile=dist/main.js"), serves: "dist" },
  react: { tool: ["esbuild@0.28.2", "react@19.3.1", "react-dom@19.3.1"],
    files: { "main.jsx": REACT, "dist/index.html": HTML("main.js") }, build() {
      cpSync(examples + "react.jsx", at("react.jsx"));
      npx("esbuild", "main.jsx", "--bundle", "--jsx=automatic", "--outfile=dist/main.js");
    }, serves: "dist" },
  next: { tool: ["next@16.4.6", "react@19.3.1", "react-dom@19.3.1"], files: {
    "app/layout.jsx": "export default ({ children }) => <html><body>{children}</body></html>;",
    "app/page.jsx": '"use client";\nimport { Story } from "../react.jsx";\nexport default () => ' +
      '<Story address="/stories.bin" prompt="Once upon a time" />;',
    "next.config.mjs": 'export default { output: "export" };' }, build() {
    cpSync(examples + "react.jsx", at("react.jsx"));
    npx("next", "build");
  }, serves: "out" },
  page: { build() {
    cpSync(at("node_modules/heads.js"), at("dist"), { recursive: true });
    cpSync(examples + "page.html", at("dist/index.html"));
  }, serves: "dist" },
  esm: { files: { "main.mjs": 'import { open } from "heads.js";\n' + PRINT },
    says: () => run("node", "main.mjs") },
  commonjs: { files: { "main.cjs": `const { open } = require("heads.js");
(async () => {\n${PRINT}})();` }, says: () => run("node", "main.cjs") },
  types: { tool: ["typescript@5.9.3"], files: { "main.ts": 'import { open } from "heads.js";\n' +
    PRINT.replace("console.log", "export const told: string = ") , "tsconfig.json": JSON.stringify({
    compilerOptions: { strict: true, module: "nodenext", target: "esnext", noEmit: true,
      lib: ["esnext", "dom"], types: [] }, files: ["main.mts"] }) }, says() {
    cpSync(at("main.ts"), at("main.mts"));
    return npx("tsc");
  }, want: "" },
  deno: { tool: ["deno@2.9.6"], files: { "main.mjs": 'import { open } from "heads.js";\n' + PRINT },
    says: () => npx("deno", "run", "-A", "--node-modules-dir=manual", "main.mjs") },
  bun: { tool: ["bun@1.4.5"], files: { "main.mjs": 'import { open } from "heads.js";\n' + PRINT },
    says: () => npx("bun", "main.mjs") },
  server: { says: async () => {
    cpSync(examples + "server.mjs", at("server.mjs"));
    const child = spawn("node", ["server.mjs", root + "models/stories.bin", "0"], { cwd: folder });
    try {
      const [line] = await new Promise((done) => { child.stdout.once("data", (x) => done([String(x)])); });
      return "Once upon a time" + await (await fetch(line.trim() + "/?prompt=Once upon a time")).text();
    } finally {
      child.kill();
    }
  } },
  extension: { says: () => in_extension() },
};

const KINDS = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript",
  ".css": "text/css" };
async function in_page(serves) {
  const server = createServer(({ url }, response) => {
    const name = url === "/" ? "/index.html" : url.split("?")[0];
    const path = name === "/stories.bin" ? root + "models/stories.bin" : at(serves + name);
    if (!existsSync(path)) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Type": KINDS[extname(path)] ?? "application/octet-stream" });
    return response.end(readFileSync(path));
  });
  await new Promise((done) => { server.listen(0, "127.0.0.1", done); });
  const running = await launch("chrome", "light", ".");
  try {
    return await told(await open(running, `http://127.0.0.1:${server.address().port}/`));
  } finally {
    await running.browser.close();
    server.close();
  }
}
async function told(page) {
  await page.waitForSelector("[data-done]", { timeout: 120000 });
  return page.$eval("#story", (e) => e.textContent);
}

async function in_extension() {
  cpSync(examples + "extension", at("extension"), { recursive: true });
  for (const name of ["heads.mjs", "heads-worker.js"]) {
    cpSync(at("node_modules/heads.js/" + name), at("extension/" + name));
  }
  cpSync(root + "models/stories.bin", at("extension/stories.bin"));
  const running = await launch("chrome", "light", ".", true);
  try {
    const id = await running.browser.installExtension(at("extension"));
    return await told(await open(running, `chrome-extension://${id}/popup.html`));
  } finally {
    await running.browser.close();
  }
}

const { open: from_build } = await import("../../build/web/heads.mjs");
const model = await from_build(root + "models/stories.bin");
let want = "Once upon a time";
const options = { temperature: 0.8, top_p: 0.95, seed: 7, max_tokens: 40 };
for await (const { text } of model.generate(want, options)) want += text;
model.close();

const all = Object.keys(PLACES), seed = Number(process.env.HEADS_SEED ?? 0);
const names = process.argv.length > 2 ? process.argv.slice(2)
  : process.env.HEADS_TESTS === "all" ? all : [all[seed % all.length]];
const failed = [];
for (const name of names) {
  const { tool = [], files = {}, build, serves, says, want: wanted = want } = PLACES[name];
  try {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder);
    write({ "package.json": '{ "private": true }', ...files });
    run("npm", "pack", "--silent", root + "build/web");
    install(...tool);
    build?.();
    assert.equal((serves ? await in_page(serves) : await says()).trim(), wanted.trim());
    console.log(`${name}: the same story`);
  } catch (error) {
    failed.push(name);
    console.log(`${name}: ${error.stderr || error.stdout || error.message}`);
  }
}
rmSync(folder, { recursive: true, force: true });
process.exit(failed.length ? 1 : 0);
