// What a page is about: tokens, layers, heads, scores and maps.
"use strict";

let data, heads;     // heads: of all layers
let TARGET, SOURCE;  // texts: of a model that reads one and writes another there are two
let two_texts;
let ROLE_NAMES, SPREAD_NAMES;  // of which there are numbers

function use_data(given) {
  data = given;
  heads = data.layers.flatMap((layer) =>
    (layer.heads || []).map((head) => Object.assign(head, { layer })));
  for (const head of heads) if ("cost" in head) head.scores.cost = head.cost;
  TARGET = data.tokens;
  SOURCE = data.source_tokens || TARGET;
  two_texts = SOURCE !== TARGET;
  [ROLE_NAMES, SPREAD_NAMES] = [ROLES, SPREAD].map((all) =>
    Object.keys(all).filter((name) => heads.some((head) => name in head.scores)));
}

// ---- texts ----

const KINDS = {
  encoder: { name: "Encoder", short: "E", get means() {
    return two_texts ? "each token of the source reads all of it" : "each token reads all others";
  } },
  decoder: { name: "Decoder", short: "D", means: "each token of the target reads those up to it" },
  cross: { name: "Cross", short: "C", means: "each token of the target reads all of the source" },
};
const kind_of = (head) => head.layer.kind || "decoder";
const rows_of = (head) => (kind_of(head) === "encoder" ? SOURCE : TARGET);     // that look
const columns_of = (head) => (kind_of(head) === "decoder" ? TARGET : SOURCE);  // that are there
const count_seen = (head, row) =>
  (kind_of(head) === "decoder" ? row + 1 : columns_of(head).length);

// ---- roles ----

const ROLES = {
  previous: {
    name: "previous token", rows: "rows that see it",
    means: "reads from the token just before.",
    formula: "Mean of the weight on the token before.",
    words: "On average this head puts {score} of a row's weight on the token just before.",
  },
  itself: {
    name: "itself", rows: "all rows",
    means: "reads from the row's own token, and so brings nothing from any other.",
    formula: "Mean of the weight on the row's own token.",
    words: "On average this head puts {score} of a row's weight on the token itself.",
  },
  duplicate: {
    name: "duplicate token", rows: "rows that see one",
    means: "reads from the other copies of the same token that it sees.",
    formula: "Mean of the weight on all other tokens equal to the row's own.",
    words: "Where a token sees another copy of itself, this head puts {score} of the weight on " +
      "such copies.",
  },
  induction: {
    name: "induction", rows: "rows that see one",
    means: "finds where this token stood before, and reads from what followed it there: " +
      "how a model goes on with a pattern that it has seen once (Olsson et al. 2022).",
    formula: "Mean of the weight on all tokens that follow an earlier copy of the row's own.",
    words: "Where a token has come before, this head puts {score} of the weight on what " +
      "followed it there.",
  },
  first: {
    name: "first token", rows: "rows that see it",
    means: "rests on the first token, whatever it is: an attention sink (Xiao et al. 2023, " +
      "Gu et al. 2024), which is how a head does next to nothing.",
    formula: "Mean of the weight on the first token.",
    words: "On average this head puts {score} of a row's weight on the first token.",
  },
  next: {
    name: "next token", rows: "rows that see it",
    means: "reads from the token just after.",
    formula: "Mean of the weight on the token after.",
    words: "On average this head puts {score} of a row's weight on the token just after.",
  },
  last: {
    name: "last token", rows: "rows that see it",
    means: "rests on the last token of the text that it reads, which is often a separator or an " +
      "end: next to nothing, as on the first one (Clark et al. 2019).",
    formula: "Mean of the weight on the last token.",
    words: "On average this head puts {score} of a row's weight on the last token.",
  },
  diagonal: {
    name: "diagonal", rows: "all rows",
    means: "reads the source in step with the target: near the token that lies as far into the " +
      "one as the row's own into the other.",
    formula: "Mean of the weight on the tokens within 2 of that place.",
    words: "On average this head puts {score} of a row's weight within 2 tokens of the same " +
      "place in the source.",
  },
};
const NO_ROLE = {
  name: "no simple role",
  means: "None of its scores is high. The number in its cell is the weight of its " +
    "strongest pair of tokens; a token with itself, or with the first, is no pair.",
};
const SPREAD = {
  distance: { name: "distance", means: "how far away it reads: 1 is as far as uniform attention" },
  entropy: { name: "entropy", means: "0: all on one token, 1: the same on all" },
  last8: { name: "last 8", means: "weight on the last 8 tokens" },
  cost: { name: "cost", means: "how much more the text surprises the model without this head, in " +
    "nats a token. Near 0 does not mean that it does nothing: others stand in for it" },
};
const role_of = (head) => ROLES[head.role] || NO_ROLE;

// ---- numbers ----

// 0.43 for prose and tables, .43 for cells, where there is little room.
const number = (x) => (x == null ? "–" : x.toFixed(x < 0.0995 && x >= 0.0005 ? 3 : 2));
const short_number = (x) =>
  (x == null ? "–" : x >= 0.995 ? x.toFixed(1) : x.toFixed(2).replace(/^(-?)0/, "$1").replace("-", "−"));
const count = (n, word) => n + " " + word + (n === 1 ? "" : "s");

// What a cell shows of a head: one score, or that of its role.
function score_of(head, shown) {
  if (shown !== "role") return head.scores[shown];
  if (head.role) return head.scores[head.role];
  return head.pairs && head.pairs.length ? head.pairs[0][2] : null;
}

// ---- tokens ----

// A token in little room: one line, and never nothing.
function label(token) {
  const text = token.text.replace(/\r?\n/g, "↵").replace(/\t/g, "⇥");
  return text.trim() || "·".repeat(text.length) || "⟨" + token.id + "⟩";
}

// ---- maps: bytes round(255 sqrt(weight)), or their base64, row after row what it sees ----

const weight_of = (byte) => (byte / 255) ** 2;

// Bytes start..end of a map, without decoding the rest.
function bytes_of(text, start, end) {
  if (typeof text !== "string") return text.subarray(start, end);
  const from = Math.floor(start / 3);
  const decoded = atob(text.slice(from * 4, Math.ceil(end / 3) * 4));
  const bytes = new Uint8Array(end - start);
  for (let i = 0; i < bytes.length; i++) bytes[i] = decoded.charCodeAt(start - from * 3 + i);
  return bytes;
}

const row_start = (head, i) =>
  (kind_of(head) === "decoder" ? (i * (i + 1)) / 2 : i * columns_of(head).length);
const has_map = (head) => Boolean(head && head.map);
const map_row = (head, i) => bytes_of(head.map, row_start(head, i), row_start(head, i + 1));
const whole_map = (head) => bytes_of(head.map, 0, row_start(head, rows_of(head).length));

let last_map = null;  // the head on show is asked for often
function map_bytes(head) {
  if (!last_map || last_map.head !== head) {
    last_map = {
      head,
      map: whole_map(head),
      sink: head.sink ? bytes_of(head.sink, 0, rows_of(head).length) : null,
    };
  }
  return last_map;
}

const weight_at = (head, i, j) =>
  (j < count_seen(head, i) ? weight_of(map_bytes(head).map[row_start(head, i) + j]) : 0);
const sink_at = (head, i) => (head.sink ? weight_of(map_bytes(head).sink[i]) : 0);

// Row i, averaged over the heads given, which are of one kind: {weights, sink}.
function mean_row(some_heads, i) {
  const weights = new Float64Array(count_seen(some_heads[0], i));
  let sink = 0;
  for (const head of some_heads) {
    map_row(head, i).forEach((byte, j) => { weights[j] += weight_of(byte) / some_heads.length; });
    if (head.sink) sink += weight_of(bytes_of(head.sink, i, i + 1)[0]) / some_heads.length;
  }
  return { weights, sink };
}

// The n strongest of a row, as [j, weight].
function strongest(weights, n) {
  return Array.from(weights, (weight, j) => [j, weight])
    .filter(([, weight]) => weight >= 0.005)
    .sort((a, b) => b[1] - a[1])
    .slice(0, n);
}
