// Debian's Chromium and Firefox, driven alike.

import axe from "axe-core";
import puppeteer from "puppeteer-core";

const PATIENCE = 300000;  // milliseconds, after which nothing will come, however slow the machine
const PROGRAMS = { chrome: ["/usr/bin/chromium"], firefox: ["/usr/bin/firefox-esr"] };

export async function launch(browser, scheme, downloads, extension) {
  const executablePath = process.env["HEADS_" + browser.toUpperCase()] ?? PROGRAMS[browser][0];
  const launched = await puppeteer.launch({
    browser, executablePath, headless: true, timeout: PATIENCE, protocolTimeout: PATIENCE,
    enableExtensions: Boolean(extension), pipe: Boolean(extension),
    args: browser === "chrome" ? ["--no-sandbox", "--disable-dev-shm-usage"] : [],
    extraPrefsFirefox: {
      "layout.css.prefers-color-scheme.content-override": scheme === "dark" ? 0 : 1,
      "ui.prefersReducedMotion": 1,
      "browser.download.folderList": 2,
      "browser.download.dir": downloads,
      "browser.download.useDownloadDir": true,
      "browser.download.always_ask_before_handling_new_types": false,
    },
  });
  return { browser: launched, name: browser, scheme, downloads };
}

// A page opened from disk or by its address, and what it said and asked for meanwhile.
export async function open(running, path, width = 1280, height = 900) {
  const page = await running.browser.newPage();
  const address = path.includes("://") ? path : "file://" + path, said = [], asked = [];
  page.on("console", (message) => said.push(message.type() + ": " + message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("request", (request) => asked.push(request.url()));
  page.setDefaultTimeout(PATIENCE);
  await page.setViewport({ width, height });
  if (running.name === "chrome") {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: running.scheme },
      { name: "prefers-reduced-motion", value: "reduce" }]);
    const session = await running.browser.target().createCDPSession();
    await session.send("Browser.setDownloadBehavior",
      { behavior: "allow", downloadPath: running.downloads });
  }
  await page.goto(address);
  page.said = said;
  page.asked = async () => asked
    .concat(await page.evaluate(() => performance.getEntriesByType("resource").map((e) => e.name)))
    .filter((url) => url !== address && !/^(data|blob):/.test(url));
  return page;
}

// What axe finds wrong, a line each.
export async function faults(page) {
  await page.evaluate(axe.source + "\n;undefined");
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => `${id}: ${help}: ${node.html.slice(0, 200)} ${node.failureSummary}`));
}
