// The pictures of the pages in docs/: head-page.png, live-page.png and chat-page.png.
//
//   make live
//   ./run models/heads.bin -p "One day a little wolf found a kite. The little wolf" \
//       --heads build/heads.html
//   python -m heads serve build/smollm2.bin --port 8080    # the model of "make chat"
//   node pictures.mjs ../../build/heads.html http://127.0.0.1:8080 ../../docs
//   mogrify -dither None -colors 64 -strip ../../docs/*-page.png    # less than 60 KB each

import { resolve } from "node:path";
import { argv } from "node:process";
import { launch, open } from "./browsers.mjs";

const [heads, server, folder] = argv.slice(2);
const running = await launch("chrome", "light", resolve(folder));

async function picture(address, name, width, height, steps) {
  const page = await open(running, address, width, height);
  await steps(page);
  await page.screenshot({ path: `${folder}/${name}` });
}

await picture(resolve(heads), "head-page.png", 1280, 760, (page) =>
  page.waitForFunction(() => document.querySelectorAll("#grid canvas").length === 8));

await picture(resolve("../../build/live.html") + "#m=heads&step=inside&p=The cat saw a red ball. " +
  "The cat saw a", "live-page.png", 1280, 900, (page) =>
  page.waitForFunction(() => document.body.dataset.done === "1" && $("computes").tBodies[0].rows.length));

await picture(server, "chat-page.png", 800, 720, async (page) => {
  await page.$eval("#seed", (e) => { e.value = 4; });
  for (const [i, question] of ["Give me three ideas for a rainy afternoon, as a list.",
    "What is the capital of France?"].entries()) {
    await page.type("#text", question);
    await page.keyboard.press("Enter");
    await page.waitForFunction((n) => document.querySelectorAll(".tools").length > n, {}, i);
  }
});
await running.browser.close();
