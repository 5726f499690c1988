// Head pages with known heads, for what no small model shows at once: every role, KV groups,
// layers without attention, sinks, maps left out, many heads, and texts of all kinds.
//
//   node made_pages.mjs build/page.html OUT_FOLDER    writes them all

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { argv } from "node:process";
import { translation } from "./made_translation.mjs";

const STORY = "Once upon a time there was a little wolf named Mira . Mira had a blue kite . " +
  "One day the blue kite flew over the old wall . \" Where is my blue kite ? \" Mira asked . " +
  "The old owl said , \" The blue kite flew over the wall .\" \n Mira looked over the old wall . " +
  "There was the blue kite !";
const MARKUP = "if (a < b && c > d) { puts(\"</script><b>x</b> &amp; <!-- -->\"); } <i>a</i> a < b";
const RIGHT_TO_LEFT = "ذهب الولد إلى المدرسة ثم ذهب الولد إلى البيت . הילד הלך לבית הספר ." +
  " and he went home";
const CHINESE = "从前有一只小狼叫米拉。米拉有一只蓝色的风筝。有一天蓝色的风筝飞走了。";
const LONG = "pneumonoultramicroscopicsilicovolcanoconiosis Donaudampfschifffahrtsgesellschaft" +
  "skapitän ⟨E2⟩ ⟨82⟩ \t \n \n pneumonoultramicroscopicsilicovolcanoconiosis is a word";

// ---- random numbers, the same each time ----

function random_of(seed) {
  let state = seed >>> 0 || 1;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

// ---- tokens ----

function tokens_of(text, pieces) {
  const ids = new Map();
  return ["<s>", ...pieces(text)].map((piece) => {
    if (!ids.has(piece)) ids.set(piece, ids.size);
    return { id: ids.get(piece), text: piece };
  });
}
const words = (text) => text.match(/ ?\S+| ?\n|\s/g);
const letters = (text) => Array.from(text);
const repeated = (n) => (text) => {
  const list = words(text);
  return Array.from({ length: n - 1 }, (_, i) => list[i % list.length]);
};

// ---- a head's map: what it looks for, and the rest spread over what it sees ----

const WANTED = {
  previous: (ids, i) => (i > 0 ? [i - 1] : []),
  itself: (ids, i) => [i],
  duplicate: (ids, i) => ids.keys_before(i, (j) => ids[j] === ids[i]),
  induction: (ids, i) => ids.keys_before(i + 1, (j) => j > 0 && j - 1 < i && ids[j - 1] === ids[i]),
  first: () => [0],
  content: (ids, i) => ids.keys_before(i, (j) => (ids[j] * 7 + ids[i] * 3) % 11 === 0),
};

function map_of(ids, kind, strength, window, random) {
  return ids.map((_, i) => {
    const start = window ? Math.max(0, i - window + 1) : 0;
    const row = Array.from({ length: i + 1 }, (_, j) => (j < start ? 0 : 0.2 + random()));
    const sum = row.reduce((a, b) => a + b);
    const wanted = (WANTED[kind] || (() => []))(ids, i).filter((j) => j >= start);
    const share = wanted.length ? strength : 0;
    return row.map((x, j) =>
      (x / sum) * (1 - share) + (wanted.includes(j) ? share / wanted.length : 0));
  });
}

// ---- scores, as the program counts them ----

const COUNTED = ["previous", "itself", "duplicate", "induction", "first"];
const mean = (list) => (list.length ? list.reduce((a, b) => a + b) / list.length : null);

function scored(ids, map, role) {
  const values = map.flatMap((row, i) => {
    const keys = WANTED[role](ids, i);
    return i === 0 || !keys.length ? [] : [keys.reduce((sum, j) => sum + row[j], 0)];
  });
  return { rows: values.length, score: mean(values) };
}

const uniform_map = (ids, window) => map_of(ids, "none", 0, window, () => 0.5);
const entropy = (row) => -row.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);

function scores_of(ids, map) {
  const rows = map.slice(1).map((row, k) => [row, k + 1]);
  return {
    ...Object.fromEntries(COUNTED.map((role) => [role, scored(ids, map, role).score])),
    distance: mean(rows.map(([row, i]) =>
      row.reduce((sum, p, j) => sum + p * (i - j), 0) / (i / 2))),
    entropy: mean(rows.map(([row, i]) => entropy(row) / Math.log(i + 1))),
    last8: mean(rows.map(([row, i]) => row.slice(Math.max(0, i - 7)).reduce((a, b) => a + b))),
  };
}

function pairs_of(map) {
  return map.flatMap((row, i) => row.map((p, j) => [i, j, p]))
    .filter(([i, j]) => j !== i && j > 0).sort((a, b) => b[2] - a[2]).slice(0, 5);
}

const bytes = (weights) =>
  Buffer.from(weights.map((p) => Math.round(255 * Math.sqrt(p)))).toString("base64");

function head_of(ids, layer, h, kind, random) {
  const strength = kind === "none" ? 0 : 0.45 + 0.5 * random();
  const map = map_of(ids, kind, strength, layer.window, random);
  const sink = map.map(() => (layer.sinks ? 0.2 + 0.6 * random() : 0));
  map.forEach((row, i) => row.forEach((p, j) => { row[j] = p * (1 - sink[i]); }));
  const scores = scores_of(ids, map);
  const [role] = COUNTED.filter((name) =>
    scores[name] >= 0.3 && scores[name] >= 3 * layer.uniform[name])
    .sort((a, b) => scores[b] - scores[a]);
  return { head: h, kv_head: Math.floor((h * layer.n_kv_heads) / layer.n_heads),
    role: role ?? null, scores, pairs: pairs_of(map),
    ...(layer.sinks ? { sink: bytes(sink) } : {}), map: bytes(map.flat()) };
}

// Of each token after the first.
function costs_of(ids, random) {
  const token_costs = ids.slice(1).map(() => 2 * random() - 0.5);
  return { cost: token_costs.reduce((sum, x) => sum + x, 0) / token_costs.length, token_costs };
}

function layer_of(ids, plan, layer, random) {
  const mixer = plan.mixer?.(layer) ?? "attention";
  const made = { layer, mixer, n_heads: plan.heads, n_kv_heads: plan.kv_heads, window: 0 };
  if (!mixer.endsWith("attention")) return { layer, mixer };
  made.window = plan.window?.(layer) ?? 0;
  const uniform = uniform_map(ids, made.window);
  const counted = COUNTED.map((role) => [role, scored(ids, uniform, role)]);
  made.rows = Object.fromEntries(counted.map(([role, { rows }]) => [role, rows]));
  made.uniform = Object.fromEntries(counted.map(([role, { score }]) => [role, score]));
  const kinds = ["previous", "first", "induction", "content", "itself", "duplicate", "none",
    "content", "first", "none"];
  const of_layer = { ...made, sinks: plan.sinks };
  made.heads = Array.from({ length: plan.heads }, (_, h) =>
    head_of(ids, of_layer, h, kinds[Math.floor(random() * kinds.length)], random));
  const chance = random_of(layer + 1);
  if (plan.costs) for (const head of made.heads) Object.assign(head, costs_of(ids, chance));
  return made;
}

export function data_of(name, plan) {
  if (plan.made) return plan.made(random_of(7));
  const tokens = tokens_of(plan.text, plan.pieces ?? words);
  const ids = tokens.map((token) => token.id);
  ids.keys_before = (end, test) =>
    Array.from({ length: end }, (_, j) => j).filter(test).filter((j) => j < ids.length);
  const random = random_of(plan.seed ?? 7);
  const layers = Array.from({ length: plan.layers }, (_, l) => layer_of(ids, plan, l, random));
  const data = { model: plan.model ?? name + ".bin", tokens, layers };
  if (plan.left_out) leave_out(data, plan.left_out);
  return data;
}

function leave_out(data, every) {
  const all = data.layers.flatMap((layer) => layer.heads ?? []);
  const left = all.filter((head, i) => !head.role && i % every === 0);
  for (const head of left) delete head.map;
  data.left_out = { heads: left.length, of: all.length, limit_mb: 8 };
}

// ---- the pages ----

export const PLANS = {
  story: { text: STORY, layers: 6, heads: 9, kv_heads: 3, costs: true },
  large: { text: STORY, pieces: repeated(128), layers: 30, heads: 9, kv_heads: 3 },
  twelve: { text: STORY, layers: 12, heads: 12, kv_heads: 12 },
  wide: { text: STORY, layers: 32, heads: 32, kv_heads: 8, left_out: 2 },
  left_out: { text: STORY, layers: 3, heads: 4, kv_heads: 2, left_out: 1 },
  tiny: { text: "a b a b", layers: 1, heads: 1, kv_heads: 1 },
  one_token: { text: "", pieces: () => [], layers: 1, heads: 2, kv_heads: 2 },
  mqa_markup: { text: MARKUP, layers: 4, heads: 8, kv_heads: 1, model: "<b>&amp;\"x\".bin" },
  mixed: { text: STORY, layers: 8, heads: 8, kv_heads: 2, sinks: true,
    mixer: (layer) => (layer % 4 === 3 ? "latent attention" : layer % 2 ? "gated DeltaNet"
      : "attention"), window: (layer) => (layer % 4 ? 0 : 16) },
  no_attention: { text: STORY, layers: 4, heads: 4, kv_heads: 4, mixer: () => "short convolution" },
  right_to_left: { text: RIGHT_TO_LEFT, layers: 3, heads: 6, kv_heads: 6 },
  chinese: { text: CHINESE, pieces: letters, layers: 3, heads: 6, kv_heads: 2 },
  long_tokens: { text: LONG, layers: 2, heads: 4, kv_heads: 4 },
  translation: { made: translation },
  thousand: { text: STORY, pieces: repeated(1000), layers: 2, heads: 2, kv_heads: 1 },
};

export function page_of(bundle, name) {
  const json = JSON.stringify(data_of(name, PLANS[name])).replace(/</g, "\\u003c");
  return bundle.replace("@DATA@", () => json);
}

if (argv[1]?.endsWith("made_pages.mjs")) {
  const bundle = readFileSync(argv[2], "utf8");
  mkdirSync(argv[3], { recursive: true });
  for (const name of Object.keys(PLANS)) {
    writeFileSync(`${argv[3]}/${name}.html`, page_of(bundle, name));
  }
}
