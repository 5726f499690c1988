// The head page in Chromium and Firefox, from disk: nothing is said on the console, nothing is
// asked of a network, axe finds no fault, and the whole path works by keyboard.
//
//   HEADS_PAGE=build/page.html node --test pages.test.mjs
//   HEADS_PAGES="a.html b.html" adds pages that ./run --heads wrote to those made here.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { faults, launch, open } from "./browsers.mjs";
import { PLANS, data_of, page_of } from "./made_pages.mjs";

const bundle = readFileSync(process.env.HEADS_PAGE ?? "../../build/page.html", "utf8");
const folder = mkdtempSync(join(tmpdir(), "heads-pages-"));
const paths = {};
for (const name of Object.keys(PLANS)) {
  paths[name] = join(folder, name + ".html");
  writeFileSync(paths[name], page_of(bundle, name));
}
const written = (process.env.HEADS_PAGES ?? "").split(" ").filter(Boolean).map((p) => resolve(p));
after(() => rmSync(folder, { recursive: true, force: true }));

// ---- what a test asks of a page ----

const text = (page, selector) => page.$eval(selector, (e) => e.textContent);
const focused = (page) => page.evaluate(() => {
  const e = document.activeElement;
  return e === document.body ? null : e.id || e.getAttribute("role") ||
    (e.closest("[data-picture]")?.dataset.picture ?? "") + e.textContent;
});
async function press(page, ...keys) {
  for (const key of keys) {
    const parts = key === "+" ? [key] : key.split("+");
    for (const held of parts.slice(0, -1)) await page.keyboard.down(held);
    await page.keyboard.press(parts.at(-1));
    for (const held of parts.slice(0, -1)) await page.keyboard.up(held);
  }
}
const title = (page) => text(page, "#head-title");
const choose = (page, id, value) => page.select("#" + id, value);
const settled = (page) => page.evaluate(() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => done(true)))));

// How many pixels of the map are not of one colour: something is drawn.
const drawn = (page) => page.$eval("#map", (canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
});

async function quiet(page) {
  assert.deepEqual(page.said, [], "the console");
  assert.deepEqual(await page.asked(), [], "requests");
}

async function sound(page) {
  const found = await faults(page);
  assert.equal(found.length, 0, found.slice(0, 5).join("\n"));
  await quiet(page);
}

// ---- weights, decoded here a second time ----

function weight_rows(head, n) {
  const bytes = Buffer.from(head.map, "base64");
  assert.equal(bytes.length, (n * (n + 1)) / 2);
  return (i) => Array.from(bytes.subarray((i * (i + 1)) / 2, ((i + 1) * (i + 2)) / 2),
    (byte) => (byte / 255) ** 2);
}

function mean_of(heads, i, n) {
  const rows = heads.map((head) => weight_rows(head, n)(i));
  return rows[0].map((_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);
}

// What a token looked at, as [column, weight].
const shown_weights = (page) => page.$$eval("#looked button", (all) => all.map((e) =>
  [parseInt(e.querySelector("small").textContent, 10),
    Number(e.querySelector(".number").textContent)]));

function expect_weights(shown, row) {
  const want = [...row].sort((a, b) => b - a);
  assert.ok(shown.length > 0 && shown.length <= 8);
  shown.forEach(([column, weight], k) => {
    for (const expected of [row[column], want[k]]) {
      assert.ok(Math.abs(weight - expected) <= 0.0051, `${weight} at ${column}: ${expected}`);
    }
  });
}

// ---- the tests ----

const PAGES = {
  light: ["story", "translation", "mixed", "mqa_markup", "one_token", "no_attention", "right_to_left",
    "long_tokens", "left_out"],
  dark: ["story", "translation", "mixed", "left_out"],
};
const SIZES = { desk: [1280, 900], phone: [360, 740] };

function tests_of_scheme(browser, scheme) {
  let running;
  before(async () => { running = await launch(browser, scheme, folder); });
  after(() => running?.browser.close());

  for (const [size, [width, height]] of Object.entries(SIZES)) {
    for (const name of PAGES[scheme]) {
      test(`${name}, ${size}: sound as it opens`, async () => {
        const page = await open(running, paths[name], width, height);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth),
          "the page is wider than the window");
        await sound(page);
        await page.close();
      });
    }
    for (const path of (size === "desk") === (scheme === "light") ? written : []) {
      test(`${path}, ${size}: sound as it opens`, async () => {
        const page = await open(running, path, width, height);
        await sound(page);
        await page.close();
      });
    }
    test(`every state is sound, ${size}`, async () => {
      const page = await open(running, paths.story, width, height);
      await choose(page, "order", "highest");
      await page.click("#thumbnails");
      await page.click("#table summary");
      await page.type("#search", "blue");
      await page.click('#roles [data-role="none"]');
      await settled(page);
      await sound(page);
      await page.close();
    });
  }

  test("the scheme is the browser's", async () => {
    const page = await open(running, paths.tiny);
    const light = await page.evaluate(() =>
      Number(getComputedStyle(document.body).backgroundColor.match(/\d+/)[0]) > 128);
    assert.equal(light, scheme === "light");
    assert.equal(await page.$eval("#toast", (e) => getComputedStyle(e).transitionDuration), "0s");
    await page.close();
  });
}

// Tab from the first to the last, and what each stop does.
async function keyboard_path(running) {
  const page = await open(running, paths.story);
  const stops = [];
  for (let i = 0; i < 60; i++) {
    await press(page, "Tab");
    const stop = await focused(page);
    if (stop === null || stops.includes(stop)) break;
    stops.push(stop);
    if (stop === "gridcell") {
      const before_it = await title(page);
      await press(page, "ArrowDown", "ArrowRight");
      assert.notEqual(await title(page), before_it);
    }
  }
  return { page, stops };
}

function tests_of_use(browser) {
  let running;
  before(async () => { running = await launch(browser, "light", folder); });
  after(() => running?.browser.close());
  const using = (what, name, steps) => test(what, async () => {
    const page = await open(running, paths[name]);
    await steps(page, data_of(name, PLANS[name]));
    await quiet(page);
    await page.close();
  });

  using("a cell for each head, with its role and number", "story", async (page, data) => {
    const cells = await page.$$eval('#grid [role="gridcell"]', (all) => all.map((e) => ({
      role: e.dataset.role,
      number: Number(e.querySelector(".number").textContent) })));
    const heads = data.layers.flatMap((layer) => layer.heads);
    assert.equal(cells.length, heads.length);
    cells.forEach((cell, i) => {
      assert.equal(cell.role, heads[i].role ?? "none");
      const score = heads[i].role ? heads[i].scores[heads[i].role] : heads[i].pairs[0][2];
      assert.ok(Math.abs(cell.number - score) <= 0.0051, `${cell.number} ${score}`);
    });
    for (const role of ["previous", "itself", "duplicate", "induction", "first", "none"]) {
      const want = heads.filter((head) => (head.role ?? "none") === role).length;
      assert.ok(want > 0);
      assert.equal(Number(await text(page, `#roles [data-role="${role}"] b`)), want);
    }
  });

  using("brackets join the heads of a KV head", "story", async (page, data) => {
    const row = await page.$$eval("#grid .layer:nth-child(2) .cell", (all) => all.map((e) =>
      ["shares", "opens", "closes"].filter((name) => e.classList.contains(name)).join(" ")));
    assert.deepEqual(row, Array(3).fill(["shares opens", "shares", "shares closes"]).flat());
    assert.equal((await page.$$("#grid .opens")).length, 3 * data.layers.length);
  });
  using("no brackets where no KV head is shared", "right_to_left", async (page) => {
    assert.equal((await page.$$("#grid .shares")).length, 0);
    assert.match(await text(page, "#reading"), /KV head of its own/);
  });

  using("layers without attention say so", "mixed", async (page) => {
    const said = await page.$$eval(".no-attention", (all) => all.map((e) => e.textContent));
    assert.deepEqual(said, Array(2).fill("no attention here (gated DeltaNet)"));
    assert.match(await text(page, '#grid [role="rowheader"]'), /w16 0/);
  });

  using("the map's weights are the data's, by pointer and by key", "story", async (page, data) => {
    await page.click('#grid .layer:nth-child(3) [role="gridcell"]:nth-child(3)');
    assert.match(await title(page), /^Layer 1, head 1/);
    await settled(page);
    assert.ok(await drawn(page) > 10);
    const rows = weight_rows(data.layers[1].heads[1], data.tokens.length);
    const at = (i, j) => page.evaluate((row, column) => {
      const box = document.getElementById("map").getBoundingClientRect();
      return [box.left + layout.left + (column + 0.5) * layout.cell,
        box.top + layout.top + (row + 0.5) * layout.cell];
    }, i, j);
    await page.$eval("#map", (e) => e.scrollIntoView({ block: "center" }));
    for (const [i, j] of [[40, 12], [60, 0], [20, 20]]) {
      await page.mouse.move(...await at(i, j));
      const weight = Number(await text(page, "#readout b"));
      assert.ok(Math.abs(weight - rows(i)[j]) <= 0.0051, `${weight} ${rows(i)[j]}`);
      await page.mouse.click(...await at(i, j));
      assert.match(await text(page, "#looked-title"), new RegExp(` ${i} looked at`));
      expect_weights(await shown_weights(page), rows(i));
    }
    await page.mouse.move(1, 1);
    await page.focus("#map-box");
    await press(page, "Control+Home");
    assert.match(await text(page, "#readout"), / 0 reads 1.00 from .* 0$/);
    await press(page, "ArrowDown", "ArrowDown", "ArrowRight");
    assert.match(await text(page, "#readout"), / 2 reads .* 1$/);
    assert.match(await text(page, "#status"), /reads .* from/);
    await press(page, "End", "ArrowRight");
    assert.match(await text(page, "#readout"), / 2 reads .* 2$/);
  });

  using("a sink is a column of its own", "mixed", async (page, data) => {
    await page.focus('#grid [aria-selected="true"]');
    await press(page, "Control+Home");
    assert.match(await title(page), /^Layer 0, head 0/);
    await page.focus("#map-box");
    await press(page, "Control+End", "Home");
    const sinks = Buffer.from(data.layers[0].heads[0].sink, "base64");
    const weight = Number(await text(page, "#readout b"));
    assert.match(await text(page, "#readout"), /from the sink$/);
    assert.ok(Math.abs(weight - (sinks.at(-1) / 255) ** 2) <= 0.0051);
    const listed = await page.$$eval("#looked button", (all) => all.map((e) => e.textContent));
    assert.ok(listed.some((line) => line.startsWith("the sink")));
  });

  using("zoom by key and by button", "large", async (page) => {
    await page.focus("#map-box");
    const cell = () => page.evaluate(() => layout.cell);
    const fit = await cell();
    await press(page, "+", "+");
    assert.ok(await cell() > 2 * fit);
    await press(page, "Control+End");
    await settled(page);
    const left = await page.$eval("#map-box", (e) => [e.scrollHeight - e.scrollTop - e.clientHeight,
      e.scrollWidth - e.scrollLeft - e.clientWidth]);
    assert.ok(left.every((pixels) => pixels < 2 * fit + 12), `${left} short of the last token`);
    assert.ok(await drawn(page) > 10);
    await page.click("#zoom-fit");
    assert.equal(await cell(), fit);
  });

  using("the text is lit by a head, a layer, a role", "large", async (page, data) => {
    const n = data.tokens.length;
    await page.click("#tokens .token:nth-child(62)");
    const place = (await title(page)).match(/Layer (\d+), head (\d+)/).slice(1).map(Number);
    const layer = data.layers[place[0]];
    expect_weights(await shown_weights(page), weight_rows(layer.heads[place[1]], n)(61));
    await choose(page, "source", "layer");
    expect_weights(await shown_weights(page), mean_of(layer.heads, 61, n));
    await choose(page, "source", "induction");
    const all = data.layers.flatMap((l) => l.heads).filter((head) => head.role === "induction");
    assert.ok(all.length > 1);
    expect_weights(await shown_weights(page), mean_of(all, 61, n));
    assert.match(await text(page, "#text-note"), new RegExp(`mean of ${all.length} heads`));
    const lit = await page.$$eval("#tokens .lit", (e) => e.length);
    assert.equal(lit, mean_of(all, 61, n).filter((weight) => weight >= 0.005).length);
  });

  using("search for a token and for a role", "story", async (page, data) => {
    await page.type("#search", "wolf");
    const found = await page.$$eval(".found-token", (all) => all.map((e) => e.textContent.trim()));
    assert.deepEqual(found, ["wolf"]);
    await press(page, "Enter");
    assert.match(await text(page, "#looked-title"), /^wolf/);
    assert.equal(await focused(page), "option");
    await page.$eval("#search", (e) => { e.value = ""; });
    await page.type("#search", "e KITE");
    const pieces = await page.$$eval(".found-token", (all) => all.map((e) => e.textContent));
    assert.deepEqual(pieces, Array(5).fill([" blue", " kite"]).flat());
    await page.$eval("#search", (e) => { e.value = ""; });
    await page.type("#search", "duplicate t");
    const want = data.layers.flatMap((l) => l.heads).filter((h) => h.role === "duplicate").length;
    const kept = () => page.$$eval("#grid .cell:not(.dimmed)", (all) => all.length);
    assert.equal(await kept(), want);
    assert.match(await text(page, "#found"), new RegExp(`^${want} heads`));
    await press(page, "Enter");
    assert.match(await title(page), /duplicate token/);
    await page.$eval("#search", (e) => {
      e.value = "";
      e.dispatchEvent(new Event("input"));
    });
    await page.click('#roles [data-role="duplicate"]');
    assert.equal(await kept(), want);
  });

  using("heads in order of a score", "story", async (page) => {
    await choose(page, "shown", "entropy");
    for (const [order, sign] of [["highest", -1], ["lowest", 1]]) {
      await choose(page, "order", order);
      const numbers = await page.$$eval("#grid .number", (all) =>
        all.map((e) => Number(e.textContent)));
      assert.equal(numbers.length, 54);
      assert.deepEqual(numbers, [...numbers].sort((a, b) => sign * (a - b)));
    }
    await page.focus('#grid [tabindex="0"]');
    await press(page, "Control+Home", "ArrowDown", "ArrowRight");
    assert.equal(await focused(page), "gridcell");
  });

  using("what the text's loss becomes without a head", "story", async (page, data) => {
    const all = data.layers.flatMap((layer) => layer.heads);
    await choose(page, "shown", "cost");
    await choose(page, "order", "highest");
    const [dearest] = [...all].sort((a, b) => b.cost - a.cost);
    await page.click("#grid .cell");
    assert.match(await title(page), new RegExp(`head ${dearest.head}:`));
    await choose(page, "source", "cost");
    const [most] = dearest.token_costs.map((cost, i) => [cost, i + 1]).sort((a, b) => b[0] - a[0]);
    const listed = await page.$$eval("#looked li", (items) => items.map((e) => e.textContent));
    assert.equal(listed.length, 8);
    assert.match(listed[0], new RegExp(` ${most[1]}${most[0].toFixed(2)}$`));
    assert.equal(await page.$$eval("#tokens .lit", (lit) => lit.length),
      dearest.token_costs.filter((cost) => cost / Math.max(1, most[0]) >= 0.005).length);
    await page.click("#looked button");
    assert.match(await text(page, "#tokens .picked"), new RegExp(data.tokens[most[1]].text.trim()));
    await sound(page);
  });

  using("all scores as a table and as text", "mixed", async (page, data) => {
    await page.click("#table summary");
    await page.waitForSelector("#table-box table");
    const n = data.layers.flatMap((layer) => layer.heads ?? []).length;
    assert.equal((await page.$$("#table-box tbody tr")).length, n);
    await page.click("#table-box th:nth-child(7) button");
    const column = await page.$$eval("#table-box td:nth-child(7)", (all) =>
      all.map((e) => Number(e.textContent)));
    assert.deepEqual(column, [...column].sort((a, b) => b - a));
    await page.click("#save-table");
    const lines = (await saved("scores.tsv")).toString().trimEnd().split("\n");
    assert.equal(lines.length, n + 1);
    assert.ok(lines.every((line) => line.split("\t").length === 13));
  });

  using("pictures are saved and copied", "mqa_markup", async (page, data) => {
    const press_button = (kind, action) => page.$$eval(`[data-picture="${kind}"] button`,
      (all, name) => all.find((e) => e.textContent === name).click(), action);
    for (const [kind, stem] of [["grid", "heads"], ["map", null]]) {
      const name = stem ?? (await title(page)).replace(/Layer (\d+), head (\d+).*/s,
        "layer$1-head$2");
      await press_button(kind, "Save PNG");
      assert.equal((await saved(name + ".png")).subarray(1, 4).toString(), "PNG");
      await press_button(kind, "Save SVG");
      const svg = (await saved(name + ".svg")).toString();
      const labels = await page.evaluate((source) => {
        const made = new DOMParser().parseFromString(source, "image/svg+xml");
        return made.querySelector("parsererror") ? null
          : [...made.querySelectorAll("text")].map((e) => e.textContent);
      }, svg);
      assert.ok(labels && labels.some((label) => label.includes(data.model)), svg.slice(0, 300));
      const cut = await page.evaluate((source) => {  // text beyond the picture's right edge
        const box = document.createElement("div");
        box.innerHTML = source;
        document.body.append(box);
        const right = box.firstChild.getBoundingClientRect().right;
        const over = [...box.querySelectorAll("text")].filter((e) =>
          e.getBoundingClientRect().right > right).map((e) => e.textContent);
        box.remove();
        return over;
      }, svg);
      assert.deepEqual(cut, []);
      assert.equal((svg.match(/<image /g) ?? []).length, kind === "grid" ? 32 : 0, "small maps");
      const colours = svg.match(/(?<=(fill|stroke)=")[^"]*/g);  // that old programs can read
      assert.deepEqual(colours.filter((name) => !/^(#[0-9a-f]{6}|none)$/.test(name)), []);
    }
    await page.bringToFront();
    for (const action of ["Copy PNG", "Copy SVG"]) {
      const buttons = await page.$$('[data-picture="map"] button');
      for (const button of buttons) {
        if (await button.evaluate((e) => e.textContent) === action) await button.click();
      }
      await page.waitForFunction(() => document.getElementById("toast").textContent !== "");
      assert.equal(await text(page, "#toast"), "Copied the picture.");
      await page.$eval("#toast", (e) => { e.textContent = ""; });
    }
  });

  using("what was left out is said, and its head still shows its scores", "left_out",
    async (page, data) => {
      const { heads: n, of } = data.left_out;
      assert.match(await text(page, "#left-out"), new RegExp(`maps of ${n} of ${of} heads`));
      assert.equal((await page.$$(".without-map")).length, n);
      await page.click(".without-map");
      assert.equal(await page.$eval("#no-map", (e) => e.hidden), false);
      assert.equal(await page.$eval("#map-box", (e) => e.hidden), true);
      assert.equal((await page.$$("#scores tbody tr")).length, 5);
      assert.match(await text(page, "#text-note"), /left out/);
      await choose(page, "source", "layer");
      assert.match(await text(page, "#text-note"), /mean of \d+ heads? of \d+/);
    });

  using("how sure: rows and the uniform score stand beside each score", "story",
    async (page, data) => {
      const place = (await title(page)).match(/Layer (\d+), head (\d+)/).slice(1).map(Number);
      const layer = data.layers[place[0]], head = layer.heads[place[1]];
      const lines = await page.$$eval("#scores tbody tr", (all) => all.map((row) =>
        [row.dataset.role, ...[...row.cells].slice(1).map((e) => Number(e.textContent))]));
      for (const [role, score, uniform, rows] of lines) {
        assert.ok(Math.abs(score - head.scores[role]) <= 0.0051);
        assert.ok(Math.abs(uniform - layer.uniform[role]) <= 0.0051);
        assert.equal(rows, layer.rows[role]);
      }
      assert.match(await text(page, "#in-words"), new RegExp(`${layer.rows[head.role]} rows`));
      assert.match(await text(page, ".top"), /Attention is not explanation/);
    });

  // Of a page with two texts: row i of a head whose rows see all n tokens.
  const whole_row = (head, n, i) => Array.from(
    Buffer.from(head.map, "base64").subarray(i * n, (i + 1) * n), (byte) => (byte / 255) ** 2);
  const spans_lit = (page, box) => page.$$eval(`#${box} .token`, (all) => all.flatMap((e, i) =>
    (e.classList.contains("lit") ? [i] : [])));

  using("two texts: three groups of heads, with the scores of each", "translation",
    async (page, data) => {
      const groups = await page.$$eval("#grid .kind b", (all) => all.map((e) => e.textContent));
      assert.deepEqual(groups, ["Encoder", "Decoder", "Cross"]);
      assert.equal((await page.$$('#grid [role="gridcell"]')).length, 54);
      assert.match(await text(page, "#shape"), /20 source tokens, 21 target tokens/);
      assert.match(await text(page, "#target"), /the likeliest token each time/);
      await page.focus('#grid [aria-selected="true"]');
      await press(page, "Control+Home");
      const kinds = ["encoder", "decoder", "cross"];
      for (let i = 0; i < 9; i++) {
        const name = await title(page), layer = data.layers[i];
        assert.ok(name.toLowerCase().startsWith(`${kinds[Math.floor(i / 3)]} layer ${i % 3}, head 0`),
          name);
        const rows = await page.$$eval("#scores tbody tr", (all) => all.map((e) => e.dataset.role));
        assert.deepEqual(rows.sort(), Object.keys(layer.uniform).sort());
        await press(page, "ArrowDown");
      }
    });

  using("two texts: a target token lights the source", "translation", async (page, data) => {
    const n = data.source_tokens.length;
    const place = (await title(page)).match(/Cross layer (\d), head (\d)/).slice(1).map(Number);
    const head = data.layers[6 + place[0]].heads[place[1]];
    assert.equal(await page.$eval("#read-side", (e) => e.hidden), false);
    await page.click("#tokens .token:nth-child(8)");
    assert.match(await text(page, "#looked-title"), /^Drachen 7 looked at/);
    const row = whole_row(head, n, 7);
    expect_weights(await shown_weights(page), row);
    assert.deepEqual(await spans_lit(page, "read"),
      row.flatMap((weight, j) => (weight >= 0.005 ? [j] : [])));
    assert.deepEqual(await spans_lit(page, "tokens"), []);
    await press(page, "ArrowRight");
    expect_weights(await shown_weights(page), whole_row(head, n, 8));
    await choose(page, "source", "layer");
    const all = data.layers[6 + place[0]].heads.map((other) => whole_row(other, n, 8));
    const mean = all[0].map((_, j) => all.reduce((sum, r) => sum + r[j], 0) / all.length);
    expect_weights(await shown_weights(page), mean);
    await choose(page, "source", "diagonal");
    assert.match(await text(page, "#text-note"), /mean of 6 heads \(diagonal\)/);
    await page.click("#read .token:nth-child(4)");
    assert.match(await text(page, "#readout"), / from flew 3$/);
  });

  using("two texts: the encoder's own, and a map with a token of each on its sides", "translation",
    async (page, data) => {
      const n = data.source_tokens.length;
      await page.focus("#map-box");
      await press(page, "Control+End");
      assert.match(await text(page, "#readout"), /^\. 20 reads .* from <\/s> 19$/);
      await press(page, "Home", "ArrowUp");
      assert.match(await text(page, "#readout"), /^Drachen 19 reads .* from The 0$/);
      await page.focus('#grid [aria-selected="true"]');
      await press(page, "Control+Home");
      assert.equal(await page.$eval("#read-side", (e) => e.hidden), true);
      assert.equal(await text(page, "#tokens"), data.source_tokens.map((t) => t.text).join(""));
      await page.click("#tokens .token:nth-child(3)");
      expect_weights(await shown_weights(page), whole_row(data.layers[0].heads[0], n, 2));
      assert.ok(Math.max(...(await spans_lit(page, "tokens"))) > 2, "what comes after it too");
      assert.ok(await drawn(page) > 10);
      await sound(page);
    });

  using("two texts: search, the table and pictures", "translation", async (page, data) => {
    await page.type("#search", "kite");
    assert.match(await text(page, "#found"), /2 tokens$/);
    assert.equal((await page.$$("#read .found-token")).length, 2);
    await page.click("#table summary");
    await page.waitForSelector("#table-box table");
    assert.equal((await page.$$("#table-box tbody tr")).length, 54);
    await page.click("#save-table");
    const [names, ...lines] = (await saved("scores.tsv")).toString().trimEnd().split("\n");
    assert.ok(names.startsWith("kind\tlayer\thead") && names.includes("\tdiagonal\t"));
    assert.equal(lines.length, 54);
    await page.$$eval('[data-picture="map"] button', (all) =>
      all.find((e) => e.textContent === "Save SVG").click());
    const stem = (await title(page)).match(/Cross layer (\d), head (\d)/).slice(1);
    const svg = (await saved(`cross-layer${stem[0]}-head${stem[1]}.svg`)).toString();
    for (const token of [...data.source_tokens, ...data.tokens]) {
      const shown = token.text.trim().replace(/</g, "&lt;").replace(/>/g, "&gt;");
      assert.ok(svg.includes(`>${shown}</text>`), shown);
    }
  });

  using("markup in tokens and names stays text", "mqa_markup", async (page, data) => {
    assert.equal(await text(page, "#tokens"), data.tokens.map((token) => token.text).join(""));
    assert.equal(await text(page, "#model"), data.model);
    assert.equal((await page.$$("#tokens b, #tokens i, #model b")).length, 0);
  });

  using("a text from right to left reads so", "right_to_left", async (page) => {
    assert.equal(await page.$eval("#tokens", (e) => getComputedStyle(e).direction), "rtl");
    await page.click("#tokens .token:nth-child(3)");
    await press(page, "ArrowLeft");
    assert.match(await text(page, "#looked-title"), / 3 looked at/);
  });

  using("arrow keys move in the text, along a line and across lines", "story", async (page) => {
    const row = async () => Number((await text(page, "#looked-title")).match(/ (\d+) looked/)[1]);
    await page.click("#tokens .token:nth-child(3)");
    await press(page, "ArrowRight");
    assert.equal(await row(), 3);
    await press(page, "ArrowDown");
    assert.ok(await row() > 8, "the line below");
    await press(page, "ArrowUp", "Home");
    assert.equal(await row(), 0);
    await press(page, "End");
    assert.equal(await row(), 68);
  });

  // ---- what is in view ----

  // Where things are on the screen; the box of text is that of its letters.
  const boxes = (page, selector) => page.$$eval(selector, (all) => all.map((e) => {
    const { left, top, right, bottom } = e.getBoundingClientRect();
    return { left, top, right, bottom };
  }));
  const inside = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1 &&
    inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  const window_of = ([width, height]) => ({ left: 0, top: 0, right: width, bottom: height });

  for (const name of ["mqa_markup", "large", "twelve", "wide", "translation"]) {
    using(`all columns are in view at 1280 pixels: ${name}`, name, async (page) => {
      for (const order of ["layers", "highest"]) {
        await choose(page, "order", order);
        const [box] = await boxes(page, "#grid-box");
        const cells = await boxes(page, "#grid .cell"), faces = await boxes(page, "#grid .number");
        cells.forEach((cell, i) => {
          assert.ok(cell.left >= box.left && cell.right <= box.right, `${cell.right} ${box.right}`);
          assert.ok(faces[i].left >= cell.left && faces[i].right <= cell.right, "its number");
        });
        for (const kind of await boxes(page, "#grid .kind")) assert.ok(kind.right <= box.right);
      }
    });
  }

  using("small maps are there from the start where they fit", "twelve", async (page) => {
    assert.equal(await page.$eval("#thumbnails", (e) => e.checked), true);
    await page.waitForFunction(() => document.querySelectorAll("#grid canvas").length === 144);
    await page.click("#thumbnails");
    assert.equal((await page.$$("#grid canvas")).length, 0);
  });

  using("small maps are drawn in view", "large", async (page) => {
    assert.equal(await page.$eval("#thumbnails", (e) => e.checked), false);
    await page.click("#thumbnails");
    await page.waitForSelector("#grid canvas");
    await settled(page);
    const maps = (await page.$$("#grid canvas")).length;
    assert.ok(maps > 9 && maps < 270, maps + " of 270");
  });

  for (const name of ["story", "large"]) {
    using(`text and map are beside each other: ${name}`, name, async (page) => {
      for (const selector of ["#map-box", "#tokens", "#looked"]) {
        const [box] = await boxes(page, selector);
        assert.ok(inside(box, window_of(SIZES.desk)), selector);
      }
      const [[map], [tokens]] = [await boxes(page, "#map-box"), await boxes(page, "#tokens")];
      assert.ok(tokens.left > map.right && tokens.top < map.bottom);
      await page.click("#pairs li:last-child button");
      assert.ok(inside(...await boxes(page, ".token.picked .word, #tokens").then(([a, b]) =>
        [b, a])), "the token that was picked is scrolled to");
    });

    test(`a tap shows its map on a phone: ${name}`, async () => {
      const page = await open(running, paths[name], ...SIZES.phone);
      for (const selector of ["#grid .layer:last-child .cell:last-child", "#tokens .token:last-child",
        "#grid .layer:nth-child(2) .cell", "#tokens .token:nth-child(3)", "#pairs button"]) {
        await page.click(selector);
        await settled(page);
        const [map] = await boxes(page, "#map");
        assert.ok(inside(map, window_of(SIZES.phone)), selector);
        assert.equal(await page.evaluate(({ left, right, bottom }) =>
          document.elementFromPoint((left + right) / 2, bottom - 4).id, map), "map", selector);
        const [tapped] = await boxes(page, selector);
        assert.ok(tapped.top >= map.bottom, `${selector} is below the map`);
      }
      await page.close();
    });
  }

  using("no number breaks in two", "story", async (page) => {
    for (const [width, height] of [[1280, 900], [768, 1024], [360, 740]]) {
      await page.setViewport({ width, height });
      const n = data_of("story", PLANS.story).tokens.length;
      for (let i = 1; i <= n; i += 9) {
        await page.$eval(`#tokens .token:nth-child(${i})`, (e) => e.click());
        const broken = await page.$$eval(".number, #scores td, #spread b, #readout b", (all) =>
          all.filter((e) => {
            const range = document.createRange();
            range.selectNodeContents(e);
            return range.getClientRects().length > 1;
          }).map((e) => e.textContent));
        assert.deepEqual(broken, [], `at ${width}`);
      }
    }
  });

  using("what is found is scrolled to", "large", async (page, data) => {
    const layers = data.layers.filter((layer) => layer.heads.some((head) => head.role === "first"));
    await page.$eval("#grid-box", (e) => { e.scrollTop = e.scrollHeight; });
    await page.click('#roles [data-role="first"]');
    const first = '#grid .cell[data-role="first"]';
    assert.equal(layers[0].layer, 0);
    assert.ok(inside((await boxes(page, first))[0], (await boxes(page, "#grid-box"))[0]));
    assert.equal(await page.evaluate((cell) => {
      const { left, top } = document.querySelector(cell).getBoundingClientRect();
      return document.elementFromPoint(left + 4, top + 4).closest(".cell")?.dataset.role;
    }, first), "first", "below the names of the columns");
    await page.click('#roles [data-role="first"]');
    await page.type("#search", "Mira");
    for (const [scrolled, found] of [["scrollHeight", ".found-token"], [0, ".found-token"]]) {
      await page.$eval("#tokens", (e, to) => { e.scrollTop = e[to] ?? to; }, scrolled);
      await page.type("#search", " ");
      assert.ok(inside((await boxes(page, found))[0], (await boxes(page, "#tokens"))[0]));
    }
  });

  using("a grey number is explained below the grid", "story", async (page) => {
    const explained = () => text(page, "#reading");
    assert.match(await explained(), /^Grey: .* strongest pair of tokens/);
    await choose(page, "shown", "entropy");
    assert.doesNotMatch(await explained(), /pair/);
  });

  test("the whole path by keyboard", async () => {
    const { page, stops } = await keyboard_path(running);
    for (const stop of ["search", "shown", "order", "thumbnails", "gridcell", "zoom-in", "map-box",
      "source", "option"]) assert.ok(stops.includes(stop), `${stop} in ${stops}`);
    assert.ok(stops.indexOf("gridcell") < stops.indexOf("map-box"));
    assert.ok(stops.indexOf("map-box") < stops.indexOf("option"));
    await quiet(page);
    await page.close();
  });
}

// A file that the page saved, once it is whole; then it is gone.
async function saved(name) {
  for (let i = 0; i < 300; i++) {
    const files = readdirSync(folder);
    if (files.includes(name) && !files.some((other) => /\.(part|crdownload)$/.test(other))) {
      const content = readFileSync(join(folder, name));
      if (content.length) {
        rmSync(join(folder, name));
        return content;
      }
    }
    await new Promise((done) => setTimeout(done, 100));
  }
  assert.fail(name + " was not saved; there are " + readdirSync(folder));
}

for (const browser of ["chrome", "firefox"]) {
  for (const scheme of ["light", "dark"]) {
    describe(`${browser}, ${scheme}`, () => tests_of_scheme(browser, scheme));
  }
  describe(browser, () => tests_of_use(browser));
}
