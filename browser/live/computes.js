// One head computing for the chosen token: the formula of docs/lesson.md with this text's numbers, as
// strips of colour. A row is a token that is read; q stands above the keys, the mix below the values.
"use strict";

const PARTS = [  // class of what a step shows; its words
  ["q", () => ["The stream of ", token_chip(parts.of), ", through the head's part of a matrix: a query of " +
    count(parts.dim, "number") + ", what it looks for." + turned_words()]],
  ["k", () => ["Each token that it may read has a key, made the same way: what it offers." +
    latent_words()]],
  ["product", () => [`Query times key, number by number, added up, times the scale ${parts.scale.toFixed(3)}` +
    ": high where they point the same way."]],
  ["score", () => ["The mask: later tokens do not count." + (shaped() ? " A softcap or a bias changes " +
    "the other scores." : "")]],
  ["weight", () => ["Softmax: e to the power of each score, over their sum. The weights add up to 1" +
    (parts.turned.sink ? ", with the sink." : ".")]],
  ["v", () => ["Each token has a value, too: what it hands over."]],
  ["mix", () => ["The values, each times its weight, added up: what the head brings to this token." +
    (parts.mixed.every((x) => x === 0) ? " It is switched off: 0." : "")]],
  ["out", () => ["Through the head's columns of the output matrix: what it adds to the stream, " +
    count(parts.n_embd, "number") + "." + adds_words()]],
];
const MOST_ROWS = 14, PACE = 1600;  // milliseconds of a step
let parts = null, at_part = PARTS.length - 1, without_rope = false, playing = null;

const scoring = () => (without_rope ? parts.plain : parts.turned);
const shaped = () => parts.turned.scores.some((x, j) => x !== parts.turned.products[j]);
const turned_words = () => (!parts.n_rope ? "" : ` Rope turns ${parts.n_rope} of them by where the ` +
  "token stands" + (without_rope ? "; here it does not." : "."));
const latent_words = () => (!parts.rank ? "" : ` All heads' keys and values are made from one latent of ` +
  `${parts.rank} numbers, which alone is cached.`);
function adds_words() {
  if (!way || way.refused || way.of !== parts.of) return "";
  const { head } = parts, value = way.heads[data.layers.indexOf(head.layer) * way.n_heads + head.head];
  return ` That is ${signed(value)} for the logit of ${label(token_of(way.answer))}.`;
}

async function read_parts(row = state.row) {
  const { head } = state, { model } = think;
  if (!heads.length || !data.tokens.length) return () => show_computes(null);
  if (!head) return () => show_read(read_parts());  // the text, once it is there, has chosen one
  const ids = data.tokens.slice(0, row + 1).map(({ id }) => id), off = off_list(), { steers } = think;
  $("computes").classList.add("older");
  const found = await newest_of("parts", (side) => side.dissect(ids, head.layer.layer, head.head,
    off, steers));
  if (!found || think.model !== model) return null;
  return () => show_computes({ ...found, head, of: data.tokens[row], row });
}

// ---- strips ----

// Numbers as colours: blue above 0, orange below, the stronger the larger, in a picture (BMP) of a line.
function strip(numbers, most, what) {
  const n = numbers.length, words = new Uint16Array(27 + 2 * n), bytes = new Uint8Array(words.buffer);
  words.set([0x4d42, bytes.length, 0, 0, 0, 54, 0, 40, 0, n, 0, 1, 0, 1, 32]);
  numbers.forEach((x, i) => bytes.set(blend(x, most).reverse(), 54 + 4 * i));
  const made = Object.assign(element("span", { class: "strip" }), { numbers, what });
  made.style.backgroundImage = `url(data:image/bmp;base64,${btoa(String.fromCharCode(...bytes))})`;
  return made;
}

let paper, signs;  // the colour of 0, and of both signs
function mix_colours() {
  const rgb = (name) => style_of(name).match(/^#/) ? style_of(name).match(/[0-9a-f]{2}/gi)
    .map((hex) => parseInt(hex, 16)) : style_of(name).split(" ").map(Number);
  paper = rgb("--soft");
  signs = [rgb("--tint"), rgb("--accent")];
}

function blend(x, most) {
  const to = signs[x < 0 ? 1 : 0], by = Math.min(1, Math.abs(x) / most) ** 0.7;
  return paper.map((from, c) => from + by * (to[c] - from));
}

const most_of = (...lists) => Math.max(1e-9, ...lists.map((list) =>
  list.reduce((most, x) => Math.max(most, Math.abs(x)), 0)));
const row_of = (matrix, j, width) => matrix.subarray(j * width, (j + 1) * width);

// The rows on show: all, or those with the largest weights.
function shown_rows() {
  const all = Array.from({ length: parts.n }, (_, j) => j), { weights } = parts.turned;
  if (parts.n <= MOST_ROWS) return all;
  return all.sort((a, b) => weights[b] - weights[a]).slice(0, MOST_ROWS).sort((a, b) => a - b);
}

const cell_with = (part, ...content) => element("td", { "data-part": part }, ...content);

function weight_bar(weight) {
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--score", weight);
  return [number(weight), bar];
}

function show_computes(found) {
  parts = found;
  $("computes").classList.remove("older");
  for (const section of ["tHead", "tFoot"]) $("computes")[section].replaceChildren();
  $("computes").tBodies[0].replaceChildren();
  $("rope").hidden = !parts?.n_rope;
  if (!parts) return $("part-words").replaceChildren();
  mix_colours();
  const { dim, v_dim, rank, v, latents, n_rope, first } = parts, { q, k, products, scores, weights, sink } = scoring();
  const most_k = most_of(k), most_v = most_of(v), rows = shown_rows(), with_scores = shaped();
  const columns = [...(rank ? ["latent"] : []), "key", "q · k", ...(with_scores ? ["score"] : []),
    "weight", ...(n_rope ? [without_rope ? "with rope" : "no rope"] : []), "value"];
  const other = without_rope ? parts.turned : parts.plain;
  $("computes").tHead.append(element("tr", { class: "of-query" }, element("th", { scope: "row" }, "query"),
    ...(rank ? [cell_with("q", strip(parts.q_latent, most_of(parts.q_latent), "the query for latents"))] : []),
    cell_with("q", strip(q, most_of(q), "the query")), element("td", { colspan: columns.length - 1 - (rank > 0) })),
  element("tr", {}, element("th", { scope: "col" }, "token"),
    ...columns.map((name) => element("th", { scope: "col" }, name))));
  $("computes").tBodies[0].append(...rows.map((j, i) => {
    const token = data.tokens[first + j], name = label(token);
    const row = element("tr", {}, element("th", { scope: "row" }, token_chip(token), element("small", {}, ` ${first + j}`)),
      ...(rank ? [cell_with("k", strip(row_of(latents, j, rank), most_of(latents), `the latent of ${name}`))] : []),
      cell_with("k", strip(row_of(k, j, dim), most_k, `the key of ${name}`)),
      cell_with("product", fixed(products[j])),
      ...(with_scores ? [cell_with("score", fixed(scores[j]))] : []),
      cell_with("weight", ...weight_bar(weights[j])),
      ...(n_rope ? [cell_with("weight", ...weight_bar(other.weights[j]))] : []),
      cell_with("v", strip(row_of(v, j, v_dim), most_v, `the value of ${name}`)));
    row.style.setProperty("--i", i);
    row.querySelector("td:last-child .strip").style.opacity = 0.25 + 0.75 * Math.sqrt(weights[j]);
    return row;
  }), ...hidden_rows(rows, columns, weights, sink));
  $("computes").tFoot.append(element("tr", {}, element("th", { scope: "row" }, "mix"),
    ...(rank ? [cell_with("mix", strip(parts.mix_latent, most_of(parts.mix_latent), "the mix of latents"))] : []),
    element("td", { colspan: columns.length - 1 - (rank > 0) }),
    cell_with("mix", strip(parts.mixed, most_of(parts.mix), "the mix"))),
  element("tr", {}, element("th", { scope: "row" }, "adds"), element("td", { colspan: columns.length,
    "data-part": "out" }, strip(parts.out, most_of(parts.out), "what it adds to the stream"))));
  show_sharers();
  show_step_of_parts();
}

// What has no row: a sink, tokens with hardly any weight, and what the mask hides.
function hidden_rows(rows, columns, weights, sink) {
  const row = (name, part, text) => element("tr", { class: "note" }, element("th", { scope: "row" }, name),
    element("td", { colspan: columns.length, "data-part": part }, text));
  const kept = rows.reduce((sum, j) => sum + weights[j], 0), later = data.tokens.length - 1 - parts.row;
  const left = parts.n - rows.length, all = weights.reduce((a, b) => a + b, 0);
  return [...(left ? [row(count(left, "more token"), "weight", `${number(all - kept)} of the weight together`)] : []),
    ...(sink ? [row("the sink", "weight", `${number(sink)} of the weight: it hands over nothing`)] : []),
    ...(parts.first ? [row(count(parts.first, "token") + " before", "score", "outside the window: masked")] : []),
    ...(later ? [row(count(later, "later token"), "score", "masked: −∞, so the weight is 0")] : [])];
}

// Who reads the same keys and values.
function show_sharers() {
  const { kv_layer, kv_head, sharing, n_sharing, head, rank } = parts;
  const others = head.layer.heads.slice(sharing, sharing + n_sharing).filter((other) => other !== head);
  const from = kv_layer === head.layer.layer ? "" : ` of layer ${kv_layer}`;
  $("sharers").replaceChildren(rank ? `One latent${from} serves all heads (MLA).`
    : others.length ? `KV head ${kv_head}${from}, whose keys and values are also read by ` : `KV head ${kv_head}${from}, its own.`,
  ...(rank ? [] : others.map((other) => element("button", { type: "button", onclick: () => show_head_of(other) },
    `head ${other.head}`))));
}

// ---- step by step ----

function show_step_of_parts() {
  const done = new Set(PARTS.slice(0, at_part + 1).map(([name]) => name)), [now, words] = PARTS[at_part];
  for (const cell of $("computes").querySelectorAll("[data-part]")) {
    cell.classList.toggle("to-come", !done.has(cell.dataset.part));
    cell.classList.toggle("now", cell.dataset.part === now);
  }
  $("part-words").replaceChildren(element("b", {}, `${at_part + 1} of ${PARTS.length}. `), ...words());
  $("part-back").disabled = at_part === 0;
  $("part-next").disabled = at_part === PARTS.length - 1;
  $("part-play").textContent = playing ? "Stop" : "Step by step";
}

function go_to_part(i) {
  at_part = Math.min(PARTS.length - 1, Math.max(0, i));
  if (parts) show_step_of_parts();
}

function stop_playing() {
  clearInterval(playing);
  playing = null;
  go_to_part(at_part);
}

// Goes on by itself, but not where motion is not wanted: there it goes to the first step.
function play_parts() {
  if (playing) return stop_playing();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
    playing = setInterval(() => {
      go_to_part(at_part + 1);
      if (at_part === PARTS.length - 1) stop_playing();
    }, PACE);
  }
  return go_to_part(0);
}

$("part-play").addEventListener("click", play_parts);
$("part-back").addEventListener("click", () => go_to_part(at_part - 1));
$("part-next").addEventListener("click", () => go_to_part(at_part + 1));
$("rope").addEventListener("click", () => {
  without_rope = !without_rope;
  $("rope").setAttribute("aria-pressed", String(!without_rope));
  show_computes(parts);
});

// ---- the number under the pointer, or by arrow keys ----

let touched = [0, 0];  // a strip, a number of it
function read_strip({ numbers, what }, i) {
  const times = what.startsWith("the key") ? scoring().q[i] : null;
  $("computes-read").textContent = `${what}, number ${i}: ${fixed(numbers[i], 3)}` + (times === null ? ""
    : `, times the query's ${fixed(times, 3)}: ${fixed(numbers[i] * times, 3)}`);
}

$("computes").addEventListener("pointermove", (event) => {
  const one = event.target.closest(".strip");
  if (!one) return;
  const { left, width } = one.getBoundingClientRect(), n = one.numbers.length;
  read_strip(one, Math.min(n - 1, Math.max(0, Math.floor((n * (event.clientX - left)) / width))));
});
$("computes-box").addEventListener("keydown", (event) => {
  const strips = [...$("computes").querySelectorAll(".strip")];
  const [s, i] = touched, to = { ArrowUp: [s - 1, i], ArrowDown: [s + 1, i], ArrowLeft: [s, i - 1],
    ArrowRight: [s, i + 1] }[event.key];
  if (!to || !strips.length) return;
  event.preventDefault();
  const now = strips[Math.min(strips.length - 1, Math.max(0, to[0]))];
  touched = [strips.indexOf(now), Math.min(now.numbers.length - 1, Math.max(0, to[1]))];
  for (const one of strips) one.classList.toggle("touched", one === now);
  now.scrollIntoView({ block: "nearest", inline: "nearest" });
  read_strip(now, touched[1]);
  say($("computes-read").textContent);
});
follow(["head", "row"], () => { if (!running && state.step === "inside") show_read(read_parts()); });
for_steps(["inside"], meanwhile(() => read_parts(row_after_pass())));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show_computes(parts));
