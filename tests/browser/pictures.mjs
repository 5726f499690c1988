// The pictures of the two pages in docs/: docs/head-page.png and docs/chat-page.png.
//
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
