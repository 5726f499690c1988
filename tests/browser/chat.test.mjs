// The server's chat page in Chromium and Firefox, before a server that answers what a test wants:
// Markdown becomes elements, markup in an answer stays text, and every control works.
//
//   node --test chat.test.mjs

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, describe, test } from "node:test";
import { faults, launch, open } from "./browsers.mjs";

const html = readFileSync("../../python/heads/server/chat.html");
const ANSWER = `# Frogs
A **frog** is *not* a toad: see [the book](https://example.org/a) and \`jump()\`.
Second line <b>here</b> <img src=x onerror=alert(1)>

1. one
   - inner **bold**
   - inner two
2. two
   goes on

- a
* b
\`\`\`python
def count(text):
    return "<i>" + **text**
\`\`\`
The end, 2 * 3 * 4 and an open **bold
~~~
never closed`;
let pieces = [], hold = null;
const asked = [];

const server = createServer((request, response) => {
  if (request.url === "/") return response.end(html);
  if (request.url === "/v1/models") return response.end('{"data": [{"id": "tiny"}]}');
  let body = "";
  request.on("data", (part) => (body += part));
  request.on("end", async () => {
    asked.push(JSON.parse(body));
    if (pieces === "refused") {
      response.writeHead(429);
      return response.end('{"error": {"message": "too many <b>texts</b> wait"}}');
    }
    for (const piece of pieces) {
      const delta = typeof piece === "string" ? { content: piece } : piece;
      response.write(`data: ${JSON.stringify({ choices: [{ delta }] })}\n\n`);
    }
    if (hold) await hold;
    response.end("data: [DONE]\n\n");
  });
});
before(() => new Promise((done) => server.listen(0, "127.0.0.1", done)));
after(() => server.close());

const outline = (page) => page.$eval(".assistant", (turn) => [...turn.querySelectorAll("*")]
  .filter((e) => !e.closest(".tools")).map((e) => e.localName).join(" "));
const texts = (page, selector) => page.$$eval(selector, (all) => all.map((e) => e.textContent));

for (const name of ["chrome", "firefox"]) {
  describe(name, () => {
    let running, page;
    before(async () => { running = await launch(name, name === "chrome" ? "light" : "dark", "."); });
    after(() => running.browser.close());

    async function chat() {
      page = await open(running, `http://127.0.0.1:${server.address().port}/`);
      await page.waitForFunction(() => document.getElementById("model").textContent === "tiny");
    }
    async function say(text) {
      await page.type("#text", text);
      await page.keyboard.press("Enter");
    }
    const idle = () => page.waitForSelector(".tools");

    test("the first screen is not empty, and an example is sent", async () => {
      await chat();
      assert.equal((await page.$$("#hello button")).length, 3);
      assert.deepEqual(await faults(page), []);
      pieces = ["ok"];
      await page.click("#hello button");
      await idle();
      assert.match((await texts(page, ".user"))[0], /frog and a toad/);
      assert.equal(await page.$("#hello"), null);
      await page.click("#reset");
      assert.equal((await page.$$("#hello button")).length, 3);
    });

    test("an answer's Markdown is drawn, and its markup is not", async () => {
      await chat();
      pieces = [...ANSWER];
      await say("What is a frog?");
      await idle();
      assert.equal(await outline(page), "h2 p strong code ol li ul li strong li li " +
        "ul li li pre code p pre code");
      const [first, last] = [(await texts(page, ".assistant p"))[0], (await texts(page, "pre"))];
      assert.equal(first, "A frog is *not* a toad: see the book (https://example.org/a) and jump().\n" +
        "Second line <b>here</b> <img src=x onerror=alert(1)>");
      assert.deepEqual(last, ['def count(text):\n    return "<i>" + **text**', "never closed"]);
      assert.equal((await texts(page, "ol > li"))[1], "two\ngoes on");
      assert.match((await texts(page, ".tools"))[0], /\d+ tokens, [\d.]+ a second/);
      assert.deepEqual(await faults(page), []);
      assert.deepEqual(page.said, []);
    });

    test("an answer can be stopped, retried, and followed by another", async () => {
      await chat();
      asked.length = 0;
      pieces = ["first", " half"];
      let release;
      hold = new Promise((done) => (release = done));
      await say("Tell me");
      await page.waitForFunction(() => document.querySelector(".assistant")?.textContent === "first half");
      await page.click("#send");
      await idle();
      release();
      hold = null;
      pieces = ["whole"];
      await page.click(".retry");
      await page.waitForFunction(() => document.querySelector(".assistant p")?.textContent === "whole");
      await idle();
      await say("More");
      await page.waitForFunction(() => document.querySelectorAll(".tools").length === 2);
      assert.deepEqual(asked.map((body) => body.messages.map((m) => m.content)),
        [["Tell me"], ["Tell me"], ["Tell me", "whole", "More"]]);
      assert.equal((await page.$$(".retry")).length, 1);
    });

    test("thoughts stand before the answer, as text, and are not sent back", async () => {
      await chat();
      asked.length = 0;
      pieces = [{ reasoning_content: "<b>Hm.</b>\n" }, { reasoning_content: "Yes." }, "It ", "is."];
      await say("Is it?");
      await idle();
      assert.equal(await outline(page), "blockquote p");
      assert.deepEqual(await texts(page, "blockquote"), ["<b>Hm.</b>\nYes."]);
      assert.deepEqual(await faults(page), []);
      pieces = ["ok"];
      await say("Sure?");
      await page.waitForFunction(() => document.querySelectorAll(".tools").length === 2);
      assert.deepEqual(asked[1].messages.map((m) => m.content), ["Is it?", "It is.", "Sure?"]);
    });

    test("a refusal is shown as text", async () => {
      await chat();
      pieces = "refused";
      await say("x");
      await page.waitForSelector(".note");
      assert.equal((await texts(page, ".note")).at(-1), "too many <b>texts</b> wait");
    });
  });
}
