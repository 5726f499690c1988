// Safari's engine as Debian has it, WebKitGTK, with what the tests of heads.js ask of puppeteer's pages.
// It has no window of its own: it needs webkit2gtk-driver and xvfb.

import { spawn } from "node:child_process";
import { createServer } from "node:net";

const BROWSER = { binary: "/usr/lib/x86_64-linux-gnu/webkit2gtk-4.1/MiniBrowser", args: ["--automation"] };
const PATIENCE = 300000;

const free_port = () => new Promise((resolve) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

export async function launch() {
  const port = await free_port();
  const env = { ...process.env, WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: "1", LIBGL_ALWAYS_SOFTWARE: "1" };
  const driver = spawn("xvfb-run", ["-a", "WebKitWebDriver", `--port=${port}`],
    { stdio: "ignore", env, detached: true });
  const ask = async (method, path, body) => {
    for (const begun = Date.now(); ; await new Promise((done) => { setTimeout(done, 100); })) {
      const answer = await fetch(`http://127.0.0.1:${port}/session${path}`,
        { method, body: body && JSON.stringify(body) }).catch(() => null);  // it is not there yet
      if (!answer && Date.now() - begun < 60000) continue;
      const { value } = await answer.json();
      if (value?.error) throw new Error(`${path}: ${value.error}: ${value.message}`);
      return value;
    }
  };
  const { sessionId } = await ask("POST", "", { capabilities: { alwaysMatch:
    { "webkitgtk:browserOptions": BROWSER } } });
  await ask("POST", `/${sessionId}/timeouts`, { script: PATIENCE });
  const close = async () => {
    await ask("DELETE", `/${sessionId}`).catch(() => {});
    process.kill(-driver.pid);
  };
  return { browser: { close }, ask: (path, body) => ask("POST", `/${sessionId}${path}`, body) };
}

export async function open({ ask }, url) {
  await ask("/url", { url });
  const evaluate = async (run, ...args) => {
    const called = typeof run === "string" ? run : `(${run})(...given)`;
    const script = `const done = arguments[1], given = arguments[0];
      (async () => ${called})().then((found) => done([found]), (error) => done([null, String(error)]));`;
    const [found, error] = await ask("/execute/async", { script, args: [args] });
    if (error) throw new Error(error);
    return found;
  };
  return { evaluate, said: [] };
}
