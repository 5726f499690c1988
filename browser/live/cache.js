// The KV cache as it fills: its bytes, those of other schemes, and a picture, a column a token and
// a row for each layer's KV heads.
"use strict";

const bytes_in_words = (bytes) => (bytes < 1e5 ? bytes.toLocaleString("en") + " bytes"
  : (bytes / 2 ** 20).toFixed(2) + " MiB");

// MHA, each divisor of the heads as GQA, MQA, and MLA: what ./run --kv compares after n tokens.
async function schemes_after(n, layers) {
  const [{ n_heads, n_kv_heads, latent_rank, head_dim }] = layers, { model } = think;
  const alike = layers.every((l) => l.n_heads === n_heads && l.n_kv_heads === n_kv_heads);
  const counts = Array.from({ length: alike ? n_heads : 0 }, (_, i) => n_heads - i)
    .filter((heads) => n_heads % heads === 0).concat(alike && !latent_rank ? [] : [0]);
  const bytes = await model.kv_bytes(n, counts);
  const name = (heads) => (heads === n_heads ? "MHA" : heads > 1 ? "GQA" : heads ? "MQA"
    : latent_rank ? "MLA" : "its own");
  const all = counts.map((heads, i) => ({ name: name(heads), heads, bytes: bytes[i],
    own: heads === (latent_rank || !alike ? 0 : n_kv_heads) }));
  if (!alike || latent_rank) return all;
  // A latent and a rope key, together under an eighth of MHA's numbers (cli/kv/report.c).
  const [one, two] = (await Promise.all([16, 32].map((i) => model.kv_bytes(i, [n_heads])))).flat();
  const numbers = Math.floor(((two - one) / 4 - 1) / (layers.length * 64)), state = 2 * one - two;
  const bytes_of_mla = 2 * numbers * layers.length * n + state;
  if (numbers > head_dim / 2) all.push({ name: "MLA", heads: 0, bytes: bytes_of_mla });
  return all;
}

async function read_cache(ids) {
  const layers = think.layers.filter((layer) => layer.attends);
  const all = layers.length ? await schemes_after(ids.length, layers) : [];
  return () => {
    $("cache-now").replaceChildren(element("b", {}, bytes_in_words(think.bytes)), " for " +
      count(ids.length, "token") + ", in blocks of 16 positions");
    draw_cache();
    show_schemes(all);
  };
}

function show_schemes(all) {
  const most = Math.max(1, ...all.map((scheme) => scheme.bytes));
  $("schemes").replaceChildren(...all.map(({ name, heads: n, own, bytes }) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--score", bytes / most);
    return element("li", { class: own ? "own" : "" }, element("span", {}, name,
      element("small", {}, (n ? " " + count(n, "KV head") : "") + (own ? ", as it is" : ""))), bar,
    element("span", { class: "number" }, bytes_in_words(bytes)));
  }));
}

// The largest weight with which the chosen token reads each cached position of a KV head.
function read_of(layer, kv_head) {
  const most = new Uint8Array(state.row + 1);
  for (const head of layer.heads) {
    if (head.kv_head !== kv_head && !layer.facts.latent_rank) continue;
    map_row(head, state.row).forEach((byte, j) => { if (byte > most[j]) most[j] = byte; });
  }
  return most;
}

// Where layers and their KV heads stand; latent attention has one row for all heads.
function cache_rows() {
  return data.layers.filter((layer) => layer.heads && layer.kv_source == null).flatMap((layer) =>
    Array.from({ length: layer.facts.latent_rank ? 1 : layer.n_kv_heads }, (_, kv_head) =>
      ({ layer, kv_head })));
}

function draw_cache() {
  const canvas = $("cache"), n = data.tokens.length, rows = cache_rows();
  canvas.hidden = !rows.length || !n;
  if (canvas.hidden) return;
  const reserved = Math.ceil(n / 16) * 16, slots = Math.max(32, reserved);
  const layers = new Set(rows.map((row) => row.layer)).size, gap = slots > 128 ? 0 : 1;
  const cell = Math.max(2, Math.floor(640 / slots)), context = canvas.getContext("2d");
  const high = Math.max(2, Math.min(12, Math.floor(260 / rows.length)));
  const empty = style_of("--soft"), filled = colour_of(24);
  [canvas.width, canvas.height] = [slots * cell, rows.length * high + 3 * layers];
  let y = 0;
  rows.forEach(({ layer, kv_head }, i) => {
    if (i && rows[i - 1].layer !== layer) y += 3;
    const read = read_of(layer, kv_head), first = layer.window ? Math.max(0, n - layer.window) : 0;
    for (let j = first; j < reserved; j++) {
      context.fillStyle = j >= n ? empty : read[j] > 24 ? colour_of(read[j]) : filled;
      context.fillRect(j * cell, y, cell - gap, high - gap);
    }
    y += high;
  });
  canvas.setAttribute("aria-label", `${count(rows.length, "row")} of ${count(layers, "layer")}, ` +
    `${n} of ${reserved} positions in use`);
}

$("cache").addEventListener("click", (event) => {
  const slots = Math.max(32, Math.ceil(data.tokens.length / 16) * 16);
  const j = Math.floor((event.offsetX / $("cache").clientWidth) * slots);
  if (j >= 0 && j < data.tokens.length && heads.length) pick_token(j);
});
follow(["row"], () => { if (!running && state.step === "inside") draw_cache(); });
for_steps(["inside"], read_cache);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_cache);
