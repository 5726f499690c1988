// Fills in the parts that stay, and shows the first head.
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

function show_texts() {
  for (const shown of document.querySelectorAll(".two-texts")) shown.hidden = !two_texts;
  if (!two_texts) return;
  $("target").textContent = {
    given: "The target was given.",
    greedy: "The model wrote the target, the likeliest token each time.",
    sampled: "The model wrote the target, its tokens drawn by chance.",
  }[data.target];
}

// What each role counts, for the buttons and for their meaning.
function build_roles() {
  const kinds = [...ROLE_NAMES, "none"];
  $("roles").replaceChildren(...kinds.map((role) => {
    const n = heads.filter((head) => (head.role || "none") === role).length;
    return element("button", { type: "button", "aria-pressed": "false", "data-role": role,
      onclick: (event) => toggle_role(role, event.currentTarget) },
    icon(role), (ROLES[role] || NO_ROLE).name, element("b", {}, String(n)));
  }));
  $("meanings").replaceChildren(...kinds.flatMap((role) => {
    const { name, means, formula, rows } = ROLES[role] || NO_ROLE;
    return [element("dt", { "data-role": role }, icon(role), name),
      element("dd", {}, (role === "none" ? "" : "A head that ") + means,
        formula ? element("small", {}, formula + " Counted: " + rows + ".") : "")];
  }));
}

function toggle_role(role, button) {
  const roles = new Set(state.roles);
  if (!roles.delete(role)) roles.add(role);
  button.setAttribute("aria-pressed", String(roles.has(role)));
  show({ roles });
}

function build_choices() {
  const options = [["role", "of its role"],
    ...[...ROLE_NAMES, ...SPREAD_NAMES].map((key) => [key, (ROLES[key] || SPREAD[key]).name])];
  $("shown").replaceChildren(...options.map(([value, name]) => element("option", { value }, name)));
}

function show_left_out() {
  if (!data.left_out) return;
  const { heads: n, of, limit_mb } = data.left_out;
  $("left-out").hidden = false;
  $("left-out").textContent = "To keep this page under " + limit_mb + " MB, the maps of " + n +
    " of " + of + " heads were left out. Kept are those of heads with a role and of the " +
    "strongest others, as far as there was room; all scores are here. --heads-max sets the limit.";
}

// The head to begin with: the clearest of the most telling role that there is; of two texts, one
// that goes from one to the other.
function first_head() {
  for (const role of ["induction", "diagonal", "previous", "next", "duplicate", null, "first",
    "last"]) {
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

function search_goes() {
  const search = state.search.trim().toLowerCase();
  if (!search) return;
  const by_role = found_heads().find((head) => role_of(head).name.includes(search));
  const [token] = found_tokens(rows_of(state.head));
  if (by_role) go_to_cell(cell_of.get(by_role));
  else if (token !== undefined) pick_token(token);
}

$("search").addEventListener("input", (event) => show({ search: event.target.value }));
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") search_goes();
});
$("shown").addEventListener("change", (event) => show({ shown: event.target.value }));
$("order").addEventListener("change", (event) => show({ order: event.target.value }));
$("thumbnails").addEventListener("change", (event) => show({ thumbnails: event.target.checked }));

function redraw() {
  make_colours();
  draw_thumbnails();
  if (has_map(state.head)) {
    lay_out();
    draw_soon();
  }
}

function start() {
  document.title = "Heads of " + data.model;
  $("model").textContent = data.model;
  $("shape").textContent = shape_in_words();
  show_left_out();
  build_roles();
  build_choices();
  show_texts();
  make_colours();
  const widest = widest_layer();
  grid.style.setProperty("--heads", widest);
  document.body.classList.toggle("wide", widest > 12);
  document.body.classList.toggle("short", widest <= 12 && data.layers.length <= 12);
  build_scale();
  build_grid();
  document.body.classList.toggle("no-heads", !heads.length);
  if (!heads.length) return;
  show_head_of(first_head());
  let width = 0;
  new ResizeObserver(() => {
    if (map_box.clientWidth === width) return;
    width = map_box.clientWidth;
    redraw();
  }).observe(map_box.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

start();
