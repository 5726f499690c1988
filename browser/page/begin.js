// What a page says of its model, the head and the place to begin with, and the views in their room.
"use strict";

function shape_in_words() {
  const with_heads = data.layers.filter((layer) => layer.heads);
  const range = (name, word) => {
    const values = with_heads.map((layer) => layer[name]);
    const low = Math.min(...values), high = Math.max(...values);
    return low === high ? count(low, word) : low + " to " + count(high, word);
  };
  const tokens = (two_texts ? count(SOURCE.length, "source token") + ", " +
    count(TARGET.length, "target token") : count(TARGET.length, "token"));
  const of_kind = (kind) => data.layers.filter((layer) => layer.kind === kind).length;
  const layers = two_texts ? count(of_kind("encoder"), "encoder layer") + " and " +
    count(of_kind("cross"), "decoder layer") : count(data.layers.length, "layer");
  if (!with_heads.length) return layers + ", none with attention · " + tokens;
  return layers + (with_heads.length < data.layers.length
    ? ", " + with_heads.length + " of them with attention" : "") + " · " +
    range("n_heads", "head") + " each on " + range("n_kv_heads", "KV head") + " · " + tokens;
}

function build_meanings() {
  $("meanings").replaceChildren(...[...ROLE_NAMES, "none"].flatMap((role) => {
    const { name, means, formula, rows } = ROLES[role] || NO_ROLE;
    return [element("dt", { "data-role": role }, icon(role), name),
      element("dd", {}, (role === "none" ? "" : "A head that ") + means,
        formula ? element("small", {}, formula + " Counted: " + rows + ".") : "")];
  }));
}

function build_choices() {
  const options = [["role", "of its role"],
    ...[...ROLE_NAMES, ...SPREAD_NAMES].map((key) => [key, (ROLES[key] || SPREAD[key]).name])];
  $("shown").replaceChildren(...options.map(([value, name]) => element("option", { value }, name)));
}

// The head to begin with: the clearest of the most telling role that there is; of two texts, one
// that goes from one to the other.
function first_head() {
  for (const role of ["induction", "diagonal", "previous", "next", "duplicate", null, "first",
    "last", "itself"]) {
    const some = heads.filter((head) => (head.role || null) === role && has_map(head) &&
      (!two_texts || kind_of(head) === "cross"));
    some.sort((a, b) => score_of(b, "role") - score_of(a, "role"));
    if (some.length) return some[0];
  }
  return heads.find(has_map) || heads[0];
}

// The row to begin with: its strongest pair, or the last row.
function first_place(head) {
  const last = rows_of(head).length - 1;
  if (head.role === "induction" && has_map(head)) {
    let best = [last, 0, 0];
    for (let i = 1; i <= last; i++) {
      for (let j = 1; j < i; j++) {
        const weight = weight_at(head, i, j);
        if (data.tokens[j - 1].id === data.tokens[i].id && weight > best[2]) best = [i, j, weight];
      }
    }
    return best;
  }
  return (head.pairs && head.pairs[0]) || [last, 0];
}

function redraw() {
  make_colours();
  draw_thumbnails();
  if (has_map(state.head) && map_box.offsetWidth) {
    lay_out();
    draw_soon();
  }
}

// Lays out what follows from the model's shape; to be called again for another model.
function begin_views() {
  build_choices();
  make_colours();
  const widest = widest_layer();
  document.documentElement.style.setProperty("--heads", Math.max(1, widest));
  document.documentElement.style.setProperty("--columns", Math.max(1, data.layers.length));
  document.body.classList.toggle("wide", widest > 12);
  build_scale();
  build_grid();
  document.body.classList.toggle("no-heads", !heads.length);
}

$("shown").addEventListener("change", (event) => show({ shown: event.target.value }));
$("order")?.addEventListener("change", (event) => show({ order: event.target.value }));
$("thumbnails").addEventListener("change", (event) => show({ thumbnails: event.target.checked }));
let last_width = 0;
new ResizeObserver(() => {
  if (map_box.clientWidth === last_width || !state.head) return;
  last_width = map_box.clientWidth;
  redraw();
}).observe(map_box.parentElement);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (state.head) redraw();
});
