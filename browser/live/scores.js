// Rows of attention as they come become scores, roles and maps, as ./run --heads gives them
// (cli/heads/scores.c has the definitions and the papers).
"use strict";

const LEAST_SCORE = 0.3, TIMES_UNIFORM = 3;
const RESTS = ["first", "itself"];
const ROLE_SCORES = ["previous", "duplicate", "induction", ...RESTS];
const COUNTED = [...ROLE_SCORES, "distance", "entropy", "last8"];

// The scores of row i, the weights of first .. i; NaN where it lacks what a score is about.
function row_scores(weights, first, i, same) {
  const n = weights.length, at = (j) => weights[j - first], row = { pair: null };
  for (const name of COUNTED) row[name] = NaN;
  if (n < 2) return row;
  let sum = 0, distance = 0, equal = 0, entropy = 0, latest = 0;
  weights.forEach((p, j) => {
    const far = i - first - j;
    sum += p;
    distance += p * far;
    equal += far;
    if (p > 0) entropy -= p * Math.log(p);
    if (far < 8) latest += p;
  });
  row.last8 = latest;
  row.itself = at(i);
  if (sum > 0) {
    row.distance = distance / sum / (equal / n);
    row.entropy = (entropy / sum + Math.log(sum)) / Math.log(n);
  }
  let duplicate = 0, induction = 0;
  for (let j = same[i]; j >= 0 && j + 1 >= first; j = same[j]) {
    row.induction = induction += at(j + 1);
    if (j >= first) row.duplicate = duplicate += at(j);
  }
  if (i > first) row.previous = at(i - 1);
  if (first === 0) row.first = at(0);
  for (let j = Math.max(1, first); j < i; j++)
    if (at(j) > (row.pair?.[2] ?? 0)) row.pair = [i, j, at(j)];
  return row;
}

// The means of rows: sets scores, rows and the strongest pairs.
function mean_scores(of, rows) {
  of.scores = {};
  of.rows = {};
  for (const name of COUNTED) {
    const found = rows.map((row) => row[name]).filter((score) => !Number.isNaN(score));
    of.rows[name] = found.length;
    of.scores[name] = found.length ? found.reduce((a, b) => a + b) / found.length : null;
  }
  of.pairs = rows.flatMap(({ pair }) => (pair ? [pair] : []))
    .sort((a, b) => b[2] - a[2]).slice(0, 5);
}

// The largest score that is enough; resting on a token only where there is no other.
function role_from(scores, uniform) {
  const enough = ROLE_SCORES.filter((name) =>
    scores[name] >= LEAST_SCORE && scores[name] >= TIMES_UNIFORM * uniform[name]);
  const best = (names) => names.sort((a, b) => scores[b] - scores[a])[0];
  return best(enough.filter((name) => !RESTS.includes(name))) ?? best(enough) ?? null;
}

// ---- the views' data, which grows with the text ----

const empty_heads = ({ n_heads, n_kv_heads, sinks }) =>
  Array.from({ length: n_heads }, (_, head) => ({ head, role: null,
    kv_head: Math.floor(head / (n_heads / n_kv_heads)), scores: {}, pairs: [], counted: [],
    map: new Uint8Array(256), ...(sinks && { sink: new Uint8Array(256) }) }));

// What the views know of a model before its first token.
function empty_data(model, layers) {
  return { model, tokens: [], layers: layers.map((facts) => ({
    layer: facts.number, mixer: facts.mixer, facts, network: facts.d_ff > 0,
    ...(facts.attends && { n_heads: facts.n_heads, n_kv_heads: facts.n_kv_heads,
      window: facts.window, kv_source: facts.kv_from < 0 ? null : facts.kv_from,
      uniform: {}, rows: {}, counted: [], heads: empty_heads(facts) }) })) };
}

function grown(bytes, n) {
  if (n <= bytes.length) return bytes;
  const larger = new Uint8Array(2 * n);
  larger.set(bytes);
  return larger;
}

const byte_of = (weight) => Math.round(255 * Math.sqrt(weight));

// Forgets all but the first n tokens.
function cut_data(n) {
  data.tokens.splice(n);
  for (const { counted } of [...data.layers, ...heads]) counted?.splice(n);
}

// Adds tokens and the rows of attention from them.
function add_rows(tokens, looks) {
  data.tokens.push(...tokens);
  const last = new Map();
  const same = data.tokens.map(({ id }, i) => {
    const before = last.get(id) ?? -1;
    last.set(id, i);
    return before;
  });
  for (const { layer, head: number, position: i, first, sink, weights } of looks) {
    const { counted, heads: all } = data.layers[layer], head = all[number];
    const begin = (i * (i + 1)) / 2;
    head.map = grown(head.map, begin + i + 1);
    head.map.fill(0, begin, begin + i + 1);
    weights.forEach((weight, j) => { head.map[begin + first + j] = byte_of(weight); });
    if (head.sink) (head.sink = grown(head.sink, i + 1))[i] = byte_of(sink);
    head.counted[i] = row_scores(weights, first, i, same);
    counted[i] ??= row_scores(weights.map(() => 1 / weights.length), first, i, same);
  }
}

// Counts scores again, from the rows that there are.
function count_scores() {
  for (const layer of data.layers.filter((of) => of.heads)) {
    const mean = {};
    mean_scores(mean, layer.counted);
    Object.assign(layer, { uniform: mean.scores, rows: mean.rows });
    for (const head of layer.heads) {
      mean_scores(head, head.counted);
      head.role = role_from(head.scores, layer.uniform);
    }
  }
}
