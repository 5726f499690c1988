// Activation patching: the page's text is the clean one, another the corrupted. The map has a row for
// each token and a column for each head: how much of the clean answer comes back where what that head
// gives at that token is the clean text's. It fills as it is computed, in a worker of its own.
"use strict";

const PATCH_ROW = 20, PATCH_TOP = 16;  // pixels of a row, and of the layers' numbers
const PATCH_WORK = 4e8;                // weights times tokens of a call, after which the map is drawn
let patch = null;                      // of a map: ids of both texts, results, and the chosen cell

const corrupted_box = $("corrupted");

// Both texts, token by token; null: they differ in length, or not at all.
async function read_pair() {
  const { model } = think, corrupted = Array.from(await model.tokenize(corrupted_box.value));
  const clean = all_ids(), texts = await model.texts(corrupted);
  const n = Math.max(clean.length, corrupted.length);
  const differs = (i) => clean[i] !== corrupted[i];
  const row = (name, ids, text) => element("tr", {}, element("th", { scope: "row" }, name),
    ...Array.from({ length: n }, (_, i) => element("td", { class: differs(i) ? "differs" : "" },
      i < ids.length ? label({ id: ids[i], text: text(i) }) : "–")));
  const fits = clean.length === corrupted.length && clean.some((_, i) => differs(i));
  return { clean, corrupted, texts, fits, show() {
    $("pair").tBodies[0].replaceChildren(row("clean", clean, (i) => data.tokens[i]?.text ?? ""),
      row("corrupted", corrupted, (i) => texts[i]));
    $("patch").disabled = !fits;
    $("pair-note").textContent = fits ? "" : clean.length !== corrupted.length
      ? `${count(clean.length, "token")} and ${corrupted.length}: patching needs as many in both.`
      : "Change a word of the corrupted text, so that something else follows.";
  } };
}

async function show_pair() {
  if (!corrupted_box.value) corrupted_box.value = text_box.value;
  if (patch && String(patch.clean) !== String(all_ids())) forget_patch();
  const pair = await read_pair();
  return () => pair.show();
}

function forget_patch() {
  patch = null;
  $("patch-map-box").hidden = $("patch-progress").hidden = true;
  $("patch-words").replaceChildren();
  $("patch-best").replaceChildren();
  mark_patched();
}

const columns_of_patch = () => data.layers.flatMap((layer) => (layer.heads ?? []).map((head) =>
  ({ layer, head, at: data.layers.indexOf(layer) * patch.n_heads + head.head })));
const result_at = (column, i) => patch.results[column.at * patch.clean.length + i];
const returns = (x) => (x - patch.base) / (patch.whole - patch.base);

async function run_patch() {
  if (patch?.running) {
    patch.running = false;
    return;
  }
  const { model } = think, pair = await read_pair(), off = off_list(), side = await beside();
  if (think.model === model) pair.show();
  if (!pair.fits || think.model !== model) return;
  const [whole, base] = [await side.after(pair.clean, off), await side.after(pair.corrupted, off)];
  const [[answer], [against]] = [largest(whole, 1), largest(base, 1)];
  await texts_of([answer, against]);
  if (answer === against) {
    $("pair-note").replaceChildren("After both texts the likeliest is ", token_chip(token_of(answer)),
      ": change another word.");
    return;
  }
  const { clean, corrupted, texts } = pair;
  const own = patch = { clean, corrupted, texts, answer, against, off,
    whole: whole[answer] - whole[against], base: base[answer] - base[against], running: true, row: 0, column: 0 };
  const first = clean.findIndex((id, i) => id !== corrupted[i]), n = clean.length;
  const layers = Math.max(1, Math.min(data.layers.length,
    Math.floor(PATCH_WORK / (model.shape.weight_bytes * (n - first)))));
  const calls = [];
  for (let i = n - 1; i >= first; i--) {
    for (let l = 0; l < data.layers.length; l += layers) calls.push([l, layers, i]);
  }
  Object.assign($("patch-progress"), { max: calls.length, value: 0, hidden: false });
  $("patch").textContent = "Stop";
  for (const [i, [layer, n_layers, position]] of calls.entries()) {
    const some = await side.patch({ clean, corrupted, answer, against, off }, layer,
      Math.min(n_layers, data.layers.length - layer), position);
    if (patch !== own || think.model !== model) break;
    own.results ??= new Float32Array(some.results.length).fill(own.base);
    own.n_heads = some.n_heads;
    some.results.forEach((x, at) => { if (!Number.isNaN(x)) own.results[at] = x; });
    own.row = first;
    $("patch-progress").value = i + 1;
    draw_patch();
    if (!own.running) break;
  }
  $("patch").textContent = "Patch every head";
  $("patch-progress").hidden = true;
  if (patch !== own) return;
  own.running = false;
  show_best();
  show_command();
}

// ---- the map ----

function draw_patch() {
  $("patch-map-box").hidden = !patch?.results;
  if (!patch?.results) return;
  mix_colours();
  const columns = columns_of_patch(), n = patch.clean.length, box = $("patch-scroll");
  $("patch-tokens").replaceChildren(...patch.clean.map((id, i) => element("div", {},
    label(data.tokens[i] ?? { id, text: "" }), id === patch.corrupted[i] ? "" : element("small", {},
      ` (${label({ id: patch.corrupted[i], text: patch.texts[i] })})`))));
  const cell = Math.max(4, Math.min(26, Math.floor(box.clientWidth / columns.length)));
  const canvas = $("patch-map"), context = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
  const [width, height] = [cell * columns.length, PATCH_TOP + PATCH_ROW * n];
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  Object.assign(canvas.style, { width: width + "px", height: height + "px" });
  context.scale(ratio, ratio);
  context.font = FONT_SIZE + "px " + style_of("--sans");
  columns.forEach((column, x) => {
    if (!x || columns[x - 1].layer !== column.layer) {
      context.fillStyle = style_of("--muted");
      context.fillText(column.layer.layer, x * cell + 2, 11);
      context.fillRect(x * cell, 0, 1, height);
    }
    for (let i = 0; i < n; i++) {
      context.fillStyle = `rgb(${blend(returns(result_at(column, i)), 1)})`;
      context.fillRect(x * cell + 1, PATCH_TOP + i * PATCH_ROW + 1, cell - 1, PATCH_ROW - 1);
    }
  });
  context.strokeStyle = style_of("--ink");
  context.lineWidth = 2;
  context.strokeRect(patch.column * cell + 1, PATCH_TOP + patch.row * PATCH_ROW + 1, cell - 1, PATCH_ROW - 1);
  patch.cell = cell;
}

function show_best() {
  const columns = columns_of_patch(), all = columns.flatMap((column, x) => patch.clean.map((_, i) =>
    ({ value: returns(result_at(column, i)), row: i, column: x, head: column.head })));
  all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  signed_list($("patch-best"), all.slice(0, 6).map((one) => ({ ...one, name: [`${head_name(one.head)} at `,
    token_chip(data.tokens[one.row]), element("small", {}, ` ${one.row}`)] })), choose_patch);
  choose_patch(all[0]);
}

// Says in a sentence what the cell means, and shows its head in the picture.
function choose_patch({ row, column }) {
  Object.assign(patch, { row, column });
  const { head, ...rest } = columns_of_patch()[column], value = result_at(rest, row), share = returns(value);
  const pair = [token_chip(token_of(patch.answer)), " over ", token_chip(token_of(patch.against))];
  const what = Math.abs(share) < 0.05 ? "next to nothing comes back" : share < 0
    ? `the answer moves away by ${Math.round(-100 * share)} % of the way`
    : `${Math.round(100 * share)} % of the answer comes back`;
  $("patch-words").replaceChildren(element("b", {}, head_name(head)), " at ", token_chip(data.tokens[row]),
    element("small", {}, ` ${row}`), ": with what it gives there in the clean text, the logit of ", ...pair,
    ` goes from ${fixed(patch.base)} to ${fixed(value)} (clean: ${fixed(patch.whole)}): ${what}.`);
  if (state.head !== head) show_head_of(head);
  mark_patched(head);
  draw_patch();
}

function mark_patched(head) {
  for (const [one, cell] of cell_of) cell.classList.toggle("patched", one === head);
}

$("patch-map").addEventListener("click", (event) => {
  const row = Math.floor((event.offsetY - PATCH_TOP) / PATCH_ROW);
  const column = Math.floor(event.offsetX / patch.cell);
  if (row >= 0 && row < patch.clean.length && column < columns_of_patch().length) choose_patch({ row, column });
});
$("patch-scroll").addEventListener("keydown", (event) => {
  const [dy, dx] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (dy === undefined || !patch?.results) return;
  event.preventDefault();
  const within = (at, n) => Math.min(n - 1, Math.max(0, at));
  choose_patch({ row: within(patch.row + dy, patch.clean.length),
    column: within(patch.column + dx, columns_of_patch().length) });
  say($("patch-words").textContent);
});
$("patch").addEventListener("click", () => run_patch().catch(fail));
corrupted_box.addEventListener("input", () => {
  forget_patch();
  show_read(show_pair());
});
for_steps(["change"], show_pair);
follow(["step"], draw_patch);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_patch);
