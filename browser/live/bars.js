// The next token's probabilities as bars, as the sampler sees them, and its sliders.
"use strict";

const N_BARS = 10;
const SLIDERS = [  // name, label, from, to, step
  ["temperature", "Temperature", 0, 2, 0.05], ["top_k", "Top-k", 0, 100, 1],
  ["top_p", "Top-p", 0.05, 1, 0.05], ["min_p", "Min-p", 0, 1, 0.01],
];

// The probabilities with which the sampler draws (sampler.c): first top-k, then top-p of what is
// left, then min-p.
function drawn_from(logits, { temperature, top_k, top_p, min_p }) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  if (temperature === 0) {
    const best = logits.indexOf(most);
    return Float32Array.from(logits, (_, id) => Number(id === best));
  }
  const weights = logits.map((x) => Math.exp((x - most) / temperature));
  const sorted = top_k > 0 || top_p < 1 ? weights.slice().sort().reverse() : weights;
  let kept = top_k > 0 ? Math.min(top_k, sorted.length) : sorted.length;
  if (top_p < 1) {
    const mass = top_p * sorted.subarray(0, kept).reduce((a, b) => a + b, 0);
    let sum = 0, n = 0;
    while (n < kept && sum < mass) sum += sorted[n++];
    kept = n;
  }
  const least = Math.max(kept < sorted.length ? sorted[Math.max(0, kept - 1)] : 0, min_p);
  const total = sorted.reduce((sum, x) => (x >= least ? sum + x : sum), 0);
  return weights.map((x) => (x >= least ? x / total : 0));
}

const PLAIN = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };
const percent = (p) =>
  (p === 0 ? "–" : p < 0.001 ? "<0.1 %" : (100 * p).toFixed(p < 0.0995 ? 1 : 0) + " %");

const by_id = new Map();  // texts of tokens that were bars
async function texts_of(ids) {
  const missing = ids.filter((id) => !by_id.has(id));
  const texts = missing.length ? await think.model.texts(missing) : [];
  missing.forEach((id, i) => by_id.set(id, texts[i]));
  return ids.map((id) => ({ id, text: by_id.get(id) }));
}

// The n largest of numbers, the first of equal ones first.
function largest(numbers, n) {
  const top = [];
  numbers.forEach((x, i) => {
    if (top.length === n && x <= numbers[top[n - 1]]) return;
    let at = top.length;
    while (at > 0 && numbers[top[at - 1]] < x) at--;
    top.splice(at, 0, i);
    top.length = Math.min(top.length, n);
  });
  return top;
}

function bar_row(token, drawn, plain, before) {
  const bar = element("span", { class: "chance", "aria-hidden": "true" });
  bar.style.setProperty("--drawn", drawn);
  bar.style.setProperty("--plain", plain);
  if (before != null) bar.style.setProperty("--before", before);
  const heard = before == null ? "" : ", with nothing changed " + percent(before);
  return element("li", {}, element("button", { type: "button", "data-id": token.id,
    class: drawn ? "" : "cut", onclick: () => { stop_writing(); take_token(token.id); } },
  token_chip(token), bar, element("span", { class: "number" }, percent(drawn)),
  element("span", { class: "only-heard" }, heard)));
}

async function read_bars() {
  const { logits, before, sampling } = think;
  if (!logits) {
    return () => $("bars").replaceChildren(element("li", { class: "note" }, "Type something."));
  }
  const drawn = drawn_from(logits, sampling), plain = drawn_from(logits, PLAIN);
  const was = before && drawn_from(before, sampling);
  const ids = largest(logits, N_BARS);
  const gone = before ? largest(before, 3).filter((id) => !ids.includes(id)) : [];
  ids.splice(ids.length - gone.length, gone.length, ...gone);
  const tokens = await texts_of(ids);
  return () => {
    if (logits !== think.logits) return;
    const place = [...$("bars").children].findIndex((row) => row.contains(document.activeElement));
    $("bars").classList.toggle("with-before", Boolean(before));
    $("bars").replaceChildren(...tokens.map((token) =>
      bar_row(token, drawn[token.id], plain[token.id], was && was[token.id])));
    if (place >= 0) $("bars").children[place]?.firstChild.focus();
    $("legend").textContent = think.ended || (think.full ? "The text fills this page. " : "") +
      "A click takes a token. The mark: what the model says by itself, at temperature 1." +
      (before ? " The pale bar: with nothing changed." : "");
  };
}

const draw_bars = () => read_bars().then((show_bars) => show_bars()).catch(fail);

// ---- the sliders ----

function show_sliders() {
  for (const [name] of SLIDERS) {
    const value = think.sampling[name];
    $(name).value = value;
    $(name + "-now").textContent = name === "top_k" && !value ? "all" : String(+value.toFixed(3));
  }
  $("seed").value = think.seed;
}

$("sliders").append(...SLIDERS.map(([name, label, min, max, step]) => element("label", { for: name }, label,
  element("output", { id: name + "-now", for: name }),
  element("input", { id: name, type: "range", "aria-label": label, min, max, step, oninput: (event) => {
    think.sampling[name] = Number(event.target.value);
    show_sliders();
    draw_bars();
  } }))), element("label", {}, "Seed", element("input", { id: "seed", type: "number", min: 0,
  oninput: (event) => {
    const seed = Math.max(0, Math.floor(Number(event.target.value)) || 0);
    think.seed = Math.min(Number.MAX_SAFE_INTEGER, seed);
  } })));
after_pass.push(read_bars);
