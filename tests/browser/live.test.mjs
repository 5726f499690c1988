// The live page in Chromium and Firefox, from disk, beside ./run: the same text, the same bits of
// logits, scores, costs and guesses, whatever is typed, clicked, switched off or dropped.
//
//   make run live && node --test live.test.mjs

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { faults, launch, open } from "./browsers.mjs";

const root = resolve("../.."), live = join(root, "build/live.html");
const folder = mkdtempSync(join(tmpdir(), "heads-live-"));
after(() => rmSync(folder, { recursive: true, force: true }));

// ---- what ./run says ----

const told = (...args) =>
  execFileSync("./run", args, { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });

function hash_of(model, prompt, ...more) {
  const out = join(folder, "logits.f32");
  told(model, "-p", prompt, ...more, "--logits", out);
  const vocab = Number(/vocabulary (\d+)/.exec(told(model, "--info"))[1]);
  return createHash("sha256").update(readFileSync(out).subarray(-4 * vocab)).digest("hex");
}

function refusal(path) {
  try {
    execFileSync("./run", [path, "-p", "Hello"], { cwd: root, encoding: "utf8", stdio: "pipe" });
  } catch (error) {
    return error.stderr.trim();
  }
  return assert.fail(`${path} was opened`);
}

function json_of(verb, model, prompt, ...more) {
  const out = join(folder, "out.json");
  told(model, "-p", prompt, ...more, verb, out);
  return JSON.parse(readFileSync(out, "utf8"));
}

const STORIES = "models/stories.bin", HEADS = "models/heads.bin";
const TRICK = "The cat saw a red ball. The cat saw a";
const RUNS = [  // model, prompt, options of the link, of ./run
  [STORIES, "Once upon a time", { s: 7, n: 30, temp: 0.8 }, ["-s", "7", "-n", "30", "--temp", "0.8"]],
  [STORIES, "Lily's cat said: \"No!\" It isn\u2019t", { s: 3, n: 12, temp: 1.3, top_k: 20, top_p: 0.9, min_p: 0.02 },
    ["-s", "3", "-n", "12", "--temp", "1.3", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.02"]],
  [STORIES, "One day,\na caf\u00e9 \ud83e\udd8a", { s: 12345678901, n: 5, temp: 1 }, ["-s", "12345678901", "-n", "5", "--temp", "1"]],
  [HEADS, TRICK, { m: "heads", s: 1, n: 4, temp: 0 }, ["-n", "4", "--temp", "0"]],
  [HEADS, TRICK, { m: "heads", s: 1, n: 4, temp: 0, off: "1.*,0.2" }, ["-n", "4", "--temp", "0", "--off", "1.*,0.2"]],
];

// ---- what the page says ----

const text = (page, selector) => page.$eval(selector, (e) => e.textContent);
const texts = (page, selector) => page.$$eval(selector, (all) => all.map((e) => e.textContent));
const link_of = (p, options) => "#" + Object.entries({ p, ...options })
  .map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
const done = (page) => page.waitForFunction(() => document.body.dataset.done === "1");
const settled = (page) => page.evaluate(async () => {
  await new Promise((next) => setTimeout(next, 0));
  await turn;
  while (running || writing) await new Promise((next) => setTimeout(next, 5));
  await Promise.all([asked_last.way?.answer, asked_last.parts?.answer]).catch(() => {});
  await new Promise((next) => requestAnimationFrame(() => setTimeout(next, 0)));
});
const of_head = (page, names) => page.evaluate((names) => heads.map((head) =>
  Object.fromEntries(names.map((name) => [name, head[name]]))), names);

const near = (a, b, most, what) =>
  assert.ok(a === b || Math.abs(a - b) <= most, `${what}: ${a}, expected ${b}`);

async function sound(page) {
  const found = await faults(page);
  assert.equal(found.length, 0, found.slice(0, 5).join("\n"));
  const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide[0] <= wide[1], `the page is ${wide[0]} wide, the window ${wide[1]}`);
  quiet(page);
}

function quiet(page) {
  assert.deepEqual(page.said, [], "the console");
}

for (const name of ["chrome", "firefox"]) {
  describe(name, () => {
    let session;
    before(async () => { session = await launch(name, name === "chrome" ? "light" : "dark", folder); });
    after(() => session?.browser.close());
    async function opened(hash = "", ...size) {
      const page = await open(session, "file://" + live + hash, ...size);
      await done(page);
      await settled(page);
      return page;
    }

    for (const [model, prompt, options, args] of name === "chrome" ? RUNS : RUNS.slice(1, 3)) {
      test(`a link runs as ./run ${args.join(" ")}`, async () => {
        const page = await opened(link_of(prompt, options));
        assert.equal(await text(page, "#text"), told(model, "-p", prompt, ...args));
        const off = options.off ? ["--off", options.off] : [];
        assert.equal(await text(page, "#hash"), hash_of(model, prompt, ...off));
        const command = (await text(page, "#command")).replaceAll("logits.f32", join(folder, "by_command"));
        const said = execFileSync("sh", ["-c", command], { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
        assert.equal(said.match(/^([0-9a-f]{64})  -$/m)?.[1], await text(page, "#hash"));
        quiet(page);
        assert.deepEqual(await page.asked(), []);
        await page.close();
      });
    }

    test("scores, roles, costs, guesses and bytes are those of ./run", async () => {
      for (const [model, m, prompt] of [[HEADS, "heads", TRICK], [STORIES, "stories", "A dog and a cat. A dog"]]) {
        const page = await opened(link_of(prompt, { m, step: "change" }));
        await page.click("#measure");
        await page.waitForFunction(() => !document.getElementById("matter").hidden);
        const want = json_of("--heads", model, prompt), found = await of_head(page, ["role", "scores", "cost", "pairs"]);
        const heads = want.layers.flatMap((layer) => layer.heads);
        assert.equal(found.length, heads.length);
        found.forEach((head, i) => {
          assert.equal(head.role, heads[i].role);
          near(head.cost, heads[i].cost, 2e-5, "cost");
          assert.deepEqual(head.pairs.map((pair) => pair.slice(0, 2)), heads[i].pairs.map((pair) => pair.slice(0, 2)));
          for (const [score, value] of Object.entries(heads[i].scores)) near(head.scores[score], value, 2e-4, score);
        });
        await page.click("#to-inside");
        await page.waitForFunction(() => $("lens").tBodies[0].rows.length);
        await page.waitForFunction(() => $("schemes").children.length);
        const lens = json_of("--lens", model, prompt);
        const rows = await page.$$eval("#lens tbody tr", (all) => all.map((row) => [
          [...row.querySelectorAll(".chip")].map((e) => e.textContent), row.lastChild.textContent]));
        assert.ok(JSON.stringify(lens).length > 100 && rows.length === want.layers.length);
        const last = lens.positions.at(-1).layers;
        rows.forEach(([chips, rank], i) => {
          assert.deepEqual(chips, last[i].likeliest.slice(0, 4).map((token) => token.text.trim()));
          assert.equal(rank === "first" ? 1 : Number(rank), last[i].rank);
        });
        const kv = JSON.parse(told(model, "--kv", "--json")).rows, n = want.tokens.length;
        assert.deepEqual(await texts(page, "#schemes .number"),
          kv.map((row) => (row.bytes_per_token * n).toLocaleString("en") + " bytes"));
        quiet(page);
        await page.close();
      }
    });

    test("an empty text leaves the controls, a slow one turns grey", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", step: "change" }));
      await page.click("#measure");
      await page.waitForFunction(() => !document.getElementById("matter").hidden);
      const costs = await page.evaluate(() => heads.map((head) => head.cost)), least = Math.min(...costs);
      const listed = await texts(page, "#matter .number");
      if (least < 0) assert.equal(Number(listed.at(-1).replace("\u2212", "-")), Number(least.toFixed(3)));
      assert.match((await texts(page, "#matter li")).at(-1), /^Nats a token/);
      await page.click("#to-text");
      await page.evaluate(() => { text_box.value = ""; text_box.dispatchEvent(new Event("input")); });
      await settled(page);
      for (const id of ["models", "start-tour", "copy-link", "step", "undo"]) {
        assert.ok(await page.$eval("#" + id, (e) => e.getClientRects().length > 0), id);
      }
      await page.evaluate(() => {
        const forward = think.model.look;
        think.model.look = async (...args) => { await new Promise((next) => setTimeout(next, 700));
          think.model.look = forward; return forward.apply(think.model, args); };
        type_text("A dog");
      });
      await page.waitForFunction(() => document.body.classList.contains("busy"));
      await settled(page);
      assert.ok(await page.evaluate(() => !document.body.classList.contains("busy")));
      quiet(page);
      await page.close();
    });

    test("typing, taking and undoing, by keyboard", async () => {
      const page = await opened(link_of("", { m: "heads", temp: 0 }));
      await page.focus("#text");
      await page.keyboard.type(TRICK);
      await settled(page);
      const ids = await page.$$eval("#tokens .token", (all) => all.map((e) => e.dataset.id));
      assert.equal(ids.join(" "), told(HEADS, "-p", TRICK, "-n", "0", "--ids").trim());
      const hash = await text(page, "#hash");
      assert.equal(hash, hash_of(HEADS, TRICK));
      assert.equal((await texts(page, "#bars .chip"))[0], "red");
      await page.keyboard.press("Enter");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => think.taken.length === 2);
      await settled(page);
      assert.equal(await text(page, "#text"), TRICK + " red ball");
      assert.equal(await text(page, "#hash"), hash);
      for (let i = 0; i < 2; i++) {
        await page.keyboard.down("Control");
        await page.keyboard.press("z");
        await page.keyboard.up("Control");
        await settled(page);
      }
      assert.equal(await page.$eval("#text", (e) => e.value), TRICK);
      await page.$eval("#bars li:nth-child(2) button", (e) => e.click());
      await settled(page);
      const [second] = await page.evaluate(() => think.taken);
      assert.equal((await texts(page, "#tokens .token")).length, ids.length + 1);
      assert.equal(await page.$eval("#tokens .token:last-child", (e) => e.dataset.id), String(second));
      quiet(page);
      await page.close();
    });

    test("a head switched off moves the bars, and what they were stays behind them", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", temp: 1, top_p: 1 }));
      const red = () => page.$$eval("#bars button", (all) => {
        const bar = all.find((e) => e.querySelector(".chip").textContent === "red").querySelector(".chance").style;
        return [Number(bar.getPropertyValue("--drawn")), Number(bar.getPropertyValue("--before"))];
      });
      const [on, none] = await red();
      assert.ok(on > 0.5 && none === 0);
      await page.evaluate(() => go_to_cell(cell_rows[1][0]));
      for (let i = 0; i < 4; i++) {
        await page.keyboard.press(" ");
        await settled(page);
        await page.keyboard.press("ArrowDown");
      }
      const [off, was] = await red();
      assert.ok(off < on / 2, `${off} of ${on}`);
      near(was, on, 1e-6, "the bar behind");
      assert.equal(await text(page, "#hash"), hash_of(HEADS, TRICK, "--off", "1.*"));
      await page.click("#all-on");
      await settled(page);
      assert.equal((await red())[0], on);
      quiet(page);
      await page.close();
    });

    test("the picture's bands are ./run's attribution, and a click opens what it shows", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", off: "1.2" }));
      const want = JSON.parse(told(HEADS, "-p", TRICK, "--off", "1.2", "--attribute", " red", "--json"));
      const found = await page.evaluate(() => ({ ...way, heads: [...way.heads], ffn: [...way.ffn] }));
      assert.equal(found.answer, want.answer.id);
      want.heads.flat().forEach((part, i) => near(found.heads[i], part, 1e-4, "head " + i));
      want.ffn.forEach((part, l) => near(found.ffn[l], part, 1e-4, "network " + l));
      near(found.total, want.total, 1e-4, "total");
      const bands = await page.evaluate(() => [...$("ribbons").children].map((band) => Number(band.getAttribute("stroke-width"))));
      assert.equal(Math.max(...bands.slice(0, -1)), 9);  // the strongest head's
      assert.match(await text(page, "#way-note"), /^For red speak most: Layer 1, head 0 \(\+[\d.]+\), Layer 1, head 1/);
      await page.evaluate(() => cell_rows[1][3].click());
      assert.deepEqual(await page.evaluate(() => [state.step, key_of(state.head)]), ["inside", "1.3"]);
      await page.evaluate(() => cell_rows[0].at(-1).click());
      await page.waitForFunction(() => $("lens").querySelector(".chosen"));
      assert.equal(await page.evaluate(() => $("lens").querySelector(".chosen").rowIndex), 1);
      await page.evaluate(() => pick_token(4));
      await page.waitForFunction(() => way.of === data.tokens[4]);
      assert.equal(await text(page, "#way-from"), "a");
      await page.select("#against", String(await page.evaluate(() => way.likeliest[1].id)));
      await page.waitForFunction(() => way.against >= 0);
      assert.match(await text(page, "#parts-note"), /^Logits\. All add up to/);
      quiet(page);
      await page.close();
    });

    test("a head computes as ./run --parts says, step by step, with rope and without", async () => {
      const head = name === "chrome" ? "1.0" : "0.1";
      const page = await opened(link_of(TRICK, { m: "heads", step: "inside", head }));
      const want = JSON.parse(told(HEADS, "-p", TRICK, "--parts", head, "--json"));
      await page.waitForFunction(() => parts && $("computes").tBodies[0].rows.length);
      const found = await page.evaluate(() => JSON.parse(JSON.stringify(parts, (key, value) => (key === "head" || key === "of"
        ? undefined : ArrayBuffer.isView(value) ? [...value] : value))));
      for (const side of ["turned", "plain"]) {
        for (const what of ["q", "k", "products", "scores", "weights"]) {
          want[side][what].flat().forEach((x, i) => near(found[side][what][i], x, 1e-4, `${side} ${what} ${i}`));
        }
      }
      for (const what of ["v", "mix", "mixed", "out"]) want[what].flat().forEach((x, i) => near(found[what][i], x, 1e-4, what));
      const column = (i) => page.$$eval("#computes tbody tr", (rows, i) => rows.map((row) => row.cells[i].textContent), i);
      const shown = want.turned.weights.map((x) => x.toFixed(x < 0.0995 && x >= 0.0005 ? 3 : 2));
      assert.deepEqual(await column(3), shown);
      await page.click("#rope");
      assert.deepEqual(await column(4), shown);  // the other way round
      await page.click("#rope");
      assert.match(await text(page, "#sharers"), /^KV head 0.* read by head [01]$/);
      await page.click("#part-play");            // motion is not wanted: it waits at the first step
      assert.match(await text(page, "#part-words"), /^1 of 8\. The stream of a/);
      assert.ok(await page.$eval("#computes tfoot [data-part='out']", (e) => getComputedStyle(e).opacity === "0"));
      for (let i = 0; i < 7; i++) await page.click("#part-next");
      assert.match(await text(page, "#part-words"), /^8 of 8\..*That is [+−][\d.]+ for the logit of red\.$/);
      await page.focus("#computes-box");
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("ArrowRight");
      const key = want.turned.k[0][1], q = want.turned.q[1], minus = (x) => x.toFixed(3).replace("-", "−");
      assert.equal(await text(page, "#computes-read"), `the key of <|begin|>, number 1: ${minus(key)}, times the query's ` +
        `${minus(q)}: ${minus(key * q)}`);
      quiet(page);
      await page.close();
    });

    test("two texts: the map of patches is ./run's, and a cell is explained in a sentence", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", step: "change", c: TRICK.replace("red", "blue") }));
      const want = JSON.parse(told(HEADS, "-p", TRICK, "--patch", TRICK.replace("red", "blue"), "--json"));
      await page.waitForFunction(() => !$("patch").disabled);
      assert.deepEqual(await texts(page, "#pair .differs"), ["red", "blue"]);
      await page.click("#patch");
      await page.waitForFunction(() => $("patch-words").textContent);
      const found = await page.evaluate(() => ({ whole: patch.whole, base: patch.base, results: [...patch.results] }));
      near(found.whole, want.clean_metric, 1e-4, "clean");
      near(found.base, want.corrupted_metric, 1e-4, "corrupted");
      want.results.flat(2).forEach((x, i) => near(found.results[i], x, 1e-4, "run " + i));
      assert.match(await text(page, "#patch-words"),
        /^Layer 0, head 0 at red 5: .* the logit of red over blue goes from −10\.45 to [\d.]+ \(clean: 9\.02\): \d\d % of the answer comes back\.$/);
      assert.equal(await page.$eval(".patched", (e) => key_of(e.head)), "0.0");
      const command = await page.$$eval("#commands code", (all) => all.at(-1).textContent);
      assert.match(execFileSync("sh", ["-c", command], { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }), /red/);
      await page.focus("#patch-scroll");
      await page.keyboard.press("ArrowRight");
      assert.match(await text(page, "#patch-words"), /^Layer 0, head 1 at red 5/);
      await page.evaluate(() => { corrupted_box.value += " red"; corrupted_box.dispatchEvent(new Event("input")); });
      await page.waitForFunction(() => $("patch").disabled);
      assert.equal(await text(page, "#pair-note"), "12 tokens and 13: patching needs as many in both.");
      quiet(page);
      await page.close();
    });

    test("a direction of two lists steers as heads.py's does", async () => {
      const prompt = "Once upon a time, there was a", [more, less] = [["She was so happy", "He smiled"], ["She was so sad", "He cried"]];
      const page = await opened(link_of(prompt, { step: "change", by: 2, after: 2, more: more.join("\n"), less: less.join("\n"), temp: 1, top_p: 1 }));
      await settled(page);
      const command = await page.$$eval("#commands code", (all) => all.at(-1).textContent);
      assert.match(command, /^python3 -c /);
      const said = execFileSync("sh", ["-c", command.replace("python3", ".venv/bin/python")],
        { cwd: root, encoding: "utf8", env: { ...process.env, PYTHONPATH: join(root, "python") } });
      const want = [...said.matchAll(/\((\d+), ([\d.e-]+)\)/g)].map(([, id, p]) => [Number(id), Number(p)]);
      assert.equal(want.length, 5);
      const found = await page.evaluate(() => [...drawn_from(think.logits, PLAIN)]);
      for (const [id, p] of want) near(found[id], p, 1e-4, "token " + id);
      const plain = await page.evaluate(() => [...drawn_from(think.before, PLAIN)]);
      assert.ok(want.some(([id, p]) => Math.abs(plain[id] - p) > 0.02), "nothing moved");
      await page.click("#steer-write");
      await page.waitForFunction(() => $("steered").children.length === 4);
      await page.$eval("#steer-by", (e) => { e.value = 0; e.dispatchEvent(new Event("input")); });
      await page.waitForFunction(() => !think.steers.length && !running);
      assert.equal(await text(page, "#hash"), hash_of(STORIES, prompt));
      quiet(page);
      await page.close();
    });

    test("two models beside each other on one text: other weights, an adapter, other heads", async () => {
      const base = join(folder, "base.bin"), others = ["f32.bin", "dragons.adapter", "mqa.bin"].map((one) => join(folder, one));
      const made = (...args) => execFileSync(join(root, ".venv/bin/python"), ["export.py", "models/hf", ...args], { cwd: root, stdio: "ignore" });
      made(base);
      made(others[0], "--dtype", "f32");
      made(others[1], "--adapter", "models/dragons", "--for", base);
      made(others[2], "--kv-heads", "1");
      const page = await opened(link_of("Once upon a time, there was a", { step: "compare" }));
      await (await page.$("#file")).uploadFile(base);
      await page.waitForFunction(() => think.name === "base.bin");
      for (const [i, args] of [[others[0]], [base, "--adapter", others[1]], [others[2]]].entries()) {
        await (await page.$("#other-file")).uploadFile(others[i]);
        await page.waitForFunction((i) => other?.name.startsWith(["f32", "base.bin with", "mqa"][i]) &&
          $("compare").tBodies[0].rows[0]?.cells[2].textContent === other.name, {}, i);
        const [, line] = told(...args, "-p", "Once upon a time, there was a", "-n", "0", "--probs", "6", "--json").trim().split("\n").slice(-2);
        const want = JSON.parse(line).likeliest;
        const found = await page.$$eval("#compare tbody tr", (rows) => rows.slice(4).map((row) => [row.cells[0].textContent, row.cells[2].textContent]));
        for (const { text, probability } of want) {
          const shown = found.find(([token]) => token === text.trim())[1];
          near(shown.startsWith("<") ? 0 : Number(shown.replace(" %", "")), 100 * probability, 0.51, text);
        }
        assert.match(await text(page, "#compare-head"), /no weight differs by more than/);
      }
      const bytes = await texts(page, "#compare tbody tr:nth-child(4) td");
      const [here, there] = [base, others[2]].map((path) => /KV cache ([\d,]+)/.exec(execFileSync("sh", ["-c",
        `./run ${path} -p 'Once upon a time, there was a' -n 1 2>&1 >/dev/null`], { cwd: root, encoding: "utf8" }))[1]);
      assert.deepEqual(bytes, [here, there].map((n) => n + " bytes"));
      quiet(page);
      await page.close();
    });

    test("a link has the model beside, and another is asked for by name", async () => {
      const page = await opened(link_of(TRICK, { step: "compare", other: "heads" }));
      const names = () => page.$$eval("#compare tbody tr:first-child td", (cells) => cells.map((cell) => cell.textContent));
      await page.waitForFunction(() => !$("compared").hidden);
      assert.deepEqual(await names(), ["stories.bin", "heads"]);
      const link = await page.evaluate(() => link_hash());
      assert.match(link, /&other=heads&step=compare/);
      await page.evaluate((link) => { location.hash = link.replace("other=heads", "other=mine.bin"); }, link);
      await page.waitForFunction(() => document.body.dataset.done === "1" && /mine\.bin/.test($("notice").textContent));
      assert.equal(await page.$eval("#other", (e) => e.value), "");
      quiet(page);
      await page.close();
    });

    test("a token computes and draws what is open, once", async () => {
      const page = await opened(link_of("Once upon a time, there was a", { temp: 0 }));
      const counted = (step) => page.evaluate(async (step) => {
        const seen = {}, count = (name) => { seen[name] = (seen[name] ?? 0) + 1; };
        const note = (name, f) => function (...args) { count(name); return f.apply(this, args); };
        const quiet = async () => {
          while (running) await new Promise((next) => setTimeout(next, 5));
          await Promise.all([asked_last.way?.answer, asked_last.parts?.answer]);
          for (let i = 0; i < 3; i++) await new Promise((next) => requestAnimationFrame(next));
        };
        show({ step });
        await globalThis.step();  // what the opened step asks for has come when a token's has
        await quiet();
        const side = await beside(), kept = [];
        for (const [of, names] of [[globalThis, ["show_text", "draw_bands", "show_computes", "draw_cache", "painted_map", "show_parts",
          "fill_grid", "getComputedStyle"]], [side, ["way", "dissect"]], [think.model, ["look", "say", "kv_bytes"]]]) {
          for (const name of names) {
            kept.push([of, name, of[name]]);
            of[name] = note(name, of[name]);
          }
        }
        await globalThis.step();
        await quiet();
        for (const [of, name, f] of kept) of[name] = f;
        return seen;
      }, step);
      const always = { look: 1, way: 1, show_text: 1, fill_grid: 1, draw_bands: 1, show_parts: 1 };
      assert.deepEqual(await counted("text"), always);
      assert.deepEqual(await counted("inside"), { ...always, say: 1, kv_bytes: 3, dissect: 1, show_computes: 1,
        draw_cache: 1, painted_map: 1 });
      quiet(page);
      await page.close();
    });

    test("an experiment is a file, which ./run verifies and the page opens; a panel is a picture", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", off: "1.2", step: "inside" })), file = join(folder, "experiment.json");
      rmSync(file, { force: true });
      await page.click("#save-experiment");
      await page.waitForFunction(() => /: [0-9a-f]{64}$/.test($("sum").textContent));
      const sum = (await text(page, "#sum")).slice(-64);
      for (let i = 0; i < 100 && !existsSync(file); i++) await new Promise((next) => setTimeout(next, 50));
      assert.equal(JSON.parse(readFileSync(file, "utf8")).sha256, sum);
      told(HEADS, "--verify", file);  // exits with 0
      await page.click("#all-on");
      await settled(page);
      await (await page.$("#experiment")).uploadFile(file);
      await page.waitForFunction(() => $("sum").textContent.startsWith("It holds"));
      assert.deepEqual(await page.evaluate(() => [text_box.value, off_list(), state.step]), [TRICK, "1.2", "change"]);
      const changed = JSON.parse(readFileSync(file, "utf8"));
      changed.results.sums[0] += 1;
      const other = join(folder, "changed.json");
      writeFileSync(other, JSON.stringify(changed));
      await (await page.$("#experiment")).uploadFile(other);
      await page.waitForFunction(() => $("sum").textContent.startsWith("It does not hold"));
      for (const kind of ["whole", "parts"]) {
        const [svg, size] = await page.evaluate(async (kind) => [PICTURES[kind](), (await png_of(PICTURES[kind]())).size], kind);
        assert.ok(svg.startsWith("<svg ") && size > 5000, `${kind}: ${size} bytes`);
        assert.doesNotMatch(svg, /--[a-z0-9-]+: ;/);  // which would hide what has a fallback
      }
      quiet(page);
      await page.close();
    });

    test("sliders move the bars at once", async () => {
      const page = await opened(link_of("Once upon a time, there was a", { temp: 1, top_p: 1 }));
      const shown = () => texts(page, "#bars .number");
      const slide = (id, value) => page.$eval("#" + id, (e, value) => {
        e.value = value;
        e.dispatchEvent(new Event("input"));
      }, value);
      const first = await shown();
      await slide("top_k", 3);
      assert.deepEqual((await shown()).map((p) => p === "\u2013"), Array.from({ length: 10 }, (_, i) => i >= 3));
      await slide("temperature", 0);
      assert.equal((await shown())[0], "100 %");
      await slide("top_k", 0);
      await slide("temperature", 1);
      assert.deepEqual(await shown(), first);
      await page.close();
    });

    test("what is dropped is opened, or refused in ./run's words", async () => {
      const good = join(folder, "good.bin"), bytes = readFileSync(join(root, HEADS));
      writeFileSync(good, bytes);
      const page = await opened(link_of("Hello"));
      const input = await page.$("#file");
      execFileSync(join(root, ".venv/bin/python"), ["export.py", "models/hf", join(folder, "shape.bin"), "--shape-only"],
        { cwd: root, stdio: "ignore" });
      for (const [file, content] of [["cut.bin", bytes.subarray(0, 5000)], ["model.gguf", Buffer.from("GGUF\x03".padEnd(200, "\0"))],
        ["shape.bin", null], ["empty.bin", Buffer.alloc(0)], ["picture.png", Buffer.from("\x89PNG\r\n".padEnd(500), "latin1")]]) {
        if (content) writeFileSync(join(folder, file), content);
        await page.evaluate((name, bytes) => {
          complain("");
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
        }, file, [...readFileSync(join(folder, file))]);
        await page.waitForFunction(() => !document.getElementById("notice").hidden);
        const said = await text(page, "#notice");
        if (file === "model.gguf") assert.match(said, /a GGUF file, which export\.py reads/);  // ./run makes one of it
        else assert.equal("run: " + said, refusal(join(folder, file)).replace(folder + "/", ""));
      }
      if (name === "chrome") {
        mkdirSync(join(folder, "checkpoint"), { recursive: true });
        await page.evaluate(() => complain(""));
        const drag = await page.createCDPSession(), data = { items: [], files: [join(folder, "checkpoint")], dragOperationsMask: 1 };
        for (const type of ["dragEnter", "dragOver", "drop"]) {
          await drag.send("Input.dispatchDragEvent", { type, x: 300, y: 300, data });
        }
        await page.waitForFunction(() => !document.getElementById("notice").hidden);
        assert.equal(await text(page, "#notice"),  // ./run exports one
          "checkpoint is a directory; name a file (export.py makes one of a checkpoint)");
      }
      await page.focus("#text");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => think.taken.length === 1);
      await input.uploadFile(good);
      await page.waitForFunction(() => think.name === "good.bin");
      await settled(page);
      assert.equal(await text(page, "#hash"), hash_of(HEADS, "Hello"));
      assert.equal(await page.$eval("#notice", (e) => e.hidden), true);
      quiet(page);
      await page.close();
    });

    test("a link that says nonsense gets a sentence", async () => {
      for (const [hash, sentence] of [["s=x", "The link says s=x, which is no such number."],
        ["s=1.5&n=2", "The link says s=1.5, which is no such number."],
        ["s=-1", "The link says s=-1, which is no such number."],
        ["t=abc", "The link says t=abc, which is no such number."],
        ["t=5,1.5", "The link says t=5,1.5, which is no such number."],
        ["temp=hot", "The link says temp=hot, which is no such number."],
        ["temp=-3&n=2", "The link says temp=-3, which is no such number."],
        ["temp=99999", "The link says temp=99999, which is no such number."],
        ["off=9.9", 'heads off: "9.9": there are layers 0..4'],
        ["m=toString", "This link is of toString: open that checkpoint here, then the link again."]]) {
        const page = await opened(`#p=Hello&${hash}`);
        assert.equal(await text(page, "#notice"), sentence);
        assert.ok((await text(page, "#text")).startsWith("Hello"));
        assert.equal(await page.$eval("#temperature", (e) => e.value), "0.8");
        quiet(page);
        await page.close();
      }
    });

    test("sliders have names, and text may be dragged", async () => {
      const page = await opened("");
      const names = await page.$$eval("#sliders input", (all) => all.map((e) =>
        (e.labels[0]?.control === e ? e.getAttribute("aria-label") ?? e.labels[0].textContent : "")));
      assert.deepEqual(names, ["Temperature", "Top-k", "Top-p", "Min-p", "Seed"]);
      const prevented = await page.evaluate(() => [[], ["a"]].map((files) => {
        const dataTransfer = new DataTransfer();
        dataTransfer.setData("text/plain", "a piece of text");
        for (const name of files) dataTransfer.items.add(new File(["x"], name));
        const event = new DragEvent("dragover", { dataTransfer, cancelable: true, bubbles: true });
        document.getElementById("text").dispatchEvent(event);
        return event.defaultPrevented;
      }));
      assert.deepEqual(prevented, [false, true]);
      if (name === "chrome") {
        const features = [{ name: "forced-colors", value: "active" }];
        await (await page.createCDPSession()).send("Emulation.setEmulatedMedia", { features });
        const drawn = (selector) => page.$eval(selector, (e) => getComputedStyle(e).backgroundImage);
        assert.match(await drawn(".chance"), /gradient/);
        assert.match(await drawn(".bar"), /gradient/);
      }
      await page.close();
    });

    test("a copied link gives the same state", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", s: 5, temp: 1.4, off: "1.2" }));
      await page.focus("#text");
      for (let i = 0; i < 4; i++) await page.keyboard.press("Enter");
      await page.waitForFunction(() => think.taken.length === 4);
      await page.$eval("#bars li:nth-child(4) button", (e) => e.click());
      await page.waitForFunction(() => think.taken.length === 5);
      await settled(page);
      const state_of = async (one) => {
        await one.evaluate(() => show({ step: "inside" }));
        await one.waitForFunction(() => $("cache-now").textContent);
        const found = [await text(one, "#text"), await text(one, "#hash"), await texts(one, "#bars button"),
        await texts(one, "#grid .cell"), await text(one, "#head-title"), await text(one, "#cache-now")];
        await one.evaluate(() => show({ step: "text" }));
        return found;
      };
      await page.click("#copy-link");
      const address = await page.evaluate(() => location.href);
      const again = await open(session, address);
      await done(again);
      await settled(again);
      assert.deepEqual(await state_of(again), await state_of(page));
      for (const one of [page, again]) {
        await one.bringToFront();
        await one.focus("#text");
        await one.keyboard.press("Enter");
        await one.waitForFunction(() => think.taken.length === 6);
        await settled(one);
      }
      assert.equal(await text(again, "#text"), await text(page, "#text"));
      await page.close();
      await again.close();
    });

    test("the tour, by keyboard", async () => {
      const page = await opened();
      await page.focus("#start-tour");
      await page.keyboard.press("Enter");
      for (let i = 1; i <= 10; i++) {
        await page.waitForFunction((i) => document.activeElement.id === "tour-title" &&
          document.activeElement.textContent.startsWith(i + " of 10"), {}, i);
        await settled(page);
        if (i === 8) assert.deepEqual(await page.evaluate(() => [...think.off]), ["1.0", "1.1", "1.2", "1.3"]);
        if (i === 5) await sound(page);
        if (i === 9) {
          assert.match(await text(page, "#patch-words"), /^Layer 0, head 0 at red/);
          assert.match(await text(page, "#pair tr:last-child"), /blue/);
        }
        await page.keyboard.press("ArrowRight");
      }
      await page.keyboard.press("Escape");
      assert.equal(await page.$eval("#tour", (e) => e.hidden), true);
      assert.equal(await page.evaluate(() => document.activeElement.id), "start-tour");
      quiet(page);
      await page.close();
    });

    for (const [width, height] of name === "chrome" ? [[1440, 800], [1024, 768], [390, 844]] : [[1024, 768], [360, 640]]) {
      test(`the tour's box covers nothing that a step asks for, at ${width}`, async () => {
        const page = await opened("", width, height), wide = width > 1000;
        await page.click("#start-tour");
        for (const [i, asked] of [
          "#tokens .token", "#temperature" + (wide ? ", #bars button" : ""), "#grid .cell", "#map", "#part-words", "#part-words",
          "#part-words", "#all-on" + (wide ? ", #bars button" : ""), "#patch-map", "#schemes li",
        ].entries()) {
          await page.waitForFunction((i) => document.activeElement.id === "tour-title" &&
            document.activeElement.textContent.startsWith(i + 1 + " of 10"), {}, i);
          await settled(page);
          assert.deepEqual(await page.evaluate((asked) => [...document.querySelectorAll(asked)].filter((e) => {
            const { left, right, top, bottom } = e.getBoundingClientRect(), { cell } = layout ?? {};
            const [x, y] = e.id !== "map" ? [(left + right) / 2, (top + bottom) / 2]
              : [left + layout.left + (state.column + 0.5) * cell, top + layout.top + (state.row + 0.5) * cell];
            return !e.contains(document.elementFromPoint(x, y));
          }).map((e) => e.outerHTML), asked), [], `step ${i + 1}`);
          await page.click("#tour-next");
        }
        await page.close();
      });
    }

    test("of steps and models asked for at once the last one stays", async () => {
      const page = await opened();
      const press = (...ids) => page.evaluate((ids) => { for (const id of ids) $(id).click(); }, ids);
      const shows = async (name, path, prompt, off) => {
        await settled(page);
        assert.deepEqual(await page.evaluate(() => [think.name, [...think.off].length]), [name, off]);
        assert.equal(await text(page, "#text"), prompt);
        assert.equal(await text(page, "#hash"), hash_of(path, prompt, ...(off ? ["--off", "1.*"] : [])));
      };
      await press("start-tour", ...Array(7).fill("tour-next"));
      await shows("heads.bin", HEADS, TRICK, 4);
      await press(...Array(6).fill("tour-back"));
      await shows("stories.bin", STORIES, "Once upon a time, there was a", 0);
      await press("tour-next", "tour-next");
      await page.waitForFunction(() => think.name === "heads.bin");  // not yet set up
      await press("tour-back");
      await shows("stories.bin", STORIES, "The dog wagged his", 0);
      await page.evaluate(() => {
        for (const name of ["heads", "stories", "heads"]) {
          $("models").value = name;
          $("models").dispatchEvent(new Event("change"));
        }
        text_box.value = "Hello";
        text_box.dispatchEvent(new Event("input"));
      });
      await shows("heads.bin", HEADS, "Hello", 0);
      quiet(page);
      await page.close();
    });

    test("labels above the map do not touch", async () => {
      const page = await opened(link_of(TRICK, { m: "heads", step: "inside" }), 768, 900);
      const labels = await page.evaluate(() => {
        const drawn = [], { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (text) {
          const { a, e } = this.getTransform(), half = this.measureText(text).width / 2;
          if (this.textAlign === "center" && a > 0) drawn.push([e / a - half, e / a + half]);
        };
        draw_map();
        CanvasRenderingContext2D.prototype.fillText = fillText;
        return drawn.sort((one, other) => one[0] - other[0]);
      });
      assert.ok(labels.length > 2);
      labels.slice(1).forEach(([left], i) => assert.ok(left - labels[i][1] >= 3, `${labels}`));
      await page.close();
    });

    for (const width of name === "chrome" ? [360, 1440] : [768]) {
      test(`sound at a width of ${width}`, async () => {
        const link = link_of(TRICK + " red ball.", { m: "heads", n: 20, temp: 1.2, off: "1.1", step: "change" });
        const page = await opened(link, width, 900);
        await page.click("#measure");
        await page.waitForFunction(() => !document.getElementById("matter").hidden);
        for (const step of await page.evaluate(() => STEPS_DOWN)) {
          await page.click("#to-" + step);
          await settled(page);
          await sound(page);
        }
        await page.close();
      });
    }
  });
}
