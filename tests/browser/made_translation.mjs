// A page of a model that reads one text and writes another, with heads of every kind and role.

const SOURCE = "The little wolf flew a blue kite over the old wall , and the owl saw the kite . </s>";
const TARGET = "<s> Der kleine Wolf ließ einen blauen Drachen über die alte Mauer fliegen , und die " +
  "Eule sah den Drachen .";

function tokens_of(text) {
  const ids = new Map();
  return text.split(" ").map((word, i) => {
    if (!ids.has(word)) ids.set(word, ids.size);
    return { id: ids.get(word), text: i && !/^[.,]$/.test(word) ? " " + word : word };
  });
}

// Whether a score of a kind of map is about the pair i, j, of n tokens that are there.
function about(kind, ids, n_rows, n) {
  const steps = Math.max(1, n_rows - 1), cross = kind === "cross";
  const same = (i, j) => ids[i] === ids[j];
  return {
    previous: (i, j) => j === i - 1,
    itself: (i, j) => j === i,
    duplicate: (i, j) => same(i, j) && i !== j,
    ...(kind === "decoder" ? { induction: (i, j) => j > 0 && j - 1 < i && same(i, j - 1) } : {}),
    first: (i, j) => j === 0 && (cross || i > 0),
    next: (i, j) => j === i + 1,
    last: (i, j) => j === n - 1 && (cross || i < n - 1),
    diagonal: (i, j) => n_rows > 1 && Math.abs(j - (i * (n - 1)) / steps) <= 2,
  };
}
const ROLES = {
  encoder: ["previous", "itself", "duplicate", "first", "next", "last"],
  decoder: ["previous", "itself", "duplicate", "induction", "first"],
  cross: ["first", "last", "diagonal"],
};
const WANTS = {
  encoder: ["previous", "next", "last", "none", "duplicate", "first"],
  decoder: ["previous", "first", "none", "duplicate", "induction", "itself"],
  cross: ["diagonal", "last", "none", "diagonal", "first", "none"],
};

const mean = (list) => (list.length ? list.reduce((a, b) => a + b) / list.length : null);
const bytes = (weights) =>
  Buffer.from(weights.map((p) => Math.round(255 * Math.sqrt(p)))).toString("base64");
const entropy = (row) => -row.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);

function counted(map, test) {
  const values = map.flatMap((row, i) => {
    const keys = row.map((_, j) => j).filter((j) => row.length > 1 && test(i, j));
    return keys.length ? [keys.reduce((sum, j) => sum + row[j], 0)] : [];
  });
  return { rows: values.length, score: mean(values) };
}

function map_of(kind, n_rows, n, test, strength, random) {
  return Array.from({ length: n_rows }, (_, i) => {
    const row = Array.from({ length: kind === "decoder" ? i + 1 : n }, () => 0.2 + random());
    const sum = row.reduce((a, b) => a + b);
    const wanted = row.map((_, j) => j).filter((j) => test && test(i, j));
    const share = wanted.length ? strength : 0;
    return row.map((x, j) =>
      (x / sum) * (1 - share) + (wanted.includes(j) ? share / wanted.length : 0));
  });
}

function head_of(kind, layer, h, tests, n_rows, n, random) {
  const want = WANTS[kind][(h + 2 * layer.layer) % WANTS[kind].length];
  const map = map_of(kind, n_rows, n, tests[want], 0.5 + 0.45 * random(), random);
  const scores = Object.fromEntries(ROLES[kind].map((role) =>
    [role, counted(map, tests[role]).score]));
  const rows = map.filter((row) => row.length > 1);
  if (kind !== "cross") scores.distance = 0.8;
  scores.entropy = mean(rows.map((row) => entropy(row) / Math.log(row.length)));
  if (kind === "decoder") scores.last8 = 0.5;
  const [role] = ROLES[kind].filter((name) =>
    scores[name] >= 0.3 && scores[name] >= 3 * layer.uniform[name])
    .sort((a, b) => scores[b] - scores[a]);
  const pairs = map.flatMap((row, i) => row.map((p, j) => [i, j, p]))
    .filter(([i, j]) => j > 0 && (kind === "cross" || j !== i))
    .sort((a, b) => b[2] - a[2]).slice(0, 5);
  return { head: h, kv_head: h, role: role ?? null, scores, pairs, map: bytes(map.flat()) };
}

export function translation(random) {
  const source_tokens = tokens_of(SOURCE), tokens = tokens_of(TARGET);
  const layers = ["encoder", "decoder", "cross"].flatMap((kind) => [0, 1, 2].map((number) => {
    const rows = kind === "encoder" ? source_tokens : tokens;
    const n = (kind === "decoder" ? tokens : source_tokens).length;
    const tests = about(kind, rows.map((token) => token.id), rows.length, n);
    const layer = { layer: number, mixer: "attention", kind, n_heads: 6, n_kv_heads: 6, window: 0 };
    const equal = map_of(kind, rows.length, n, null, 0, () => 0.5);
    const counts = ROLES[kind].map((role) => [role, counted(equal, tests[role])]);
    layer.rows = Object.fromEntries(counts.map(([role, { rows: count }]) => [role, count]));
    layer.uniform = Object.fromEntries(counts.map(([role, { score }]) => [role, score]));
    layer.heads = Array.from({ length: 6 }, (_, h) =>
      head_of(kind, layer, h, tests, rows.length, n, random));
    return layer;
  }));
  return { model: "translation.bin", source_tokens, target: "greedy", tokens, layers };
}
