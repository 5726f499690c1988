// Fills in the parts that stay, and shows the first head.
"use strict";

function shape_in_words() {
  const with_heads = data.layers.filter((layer) => layer.heads);
  const range = (name, word) => {
    const values = with_heads.map((layer) => layer[name]);
    const low = Math.min(...values), high = Math.max(...values);
    return low === high ? count(low, word) : low + " to " + count(high, word);
  };
  const layers = count(data.layers.length, "layer");
  if (!with_heads.length) return layers + ", none with attention · " + count(n_tokens, "token");
  return layers + (with_heads.length < data.layers.length
    ? ", " + with_heads.length + " of them with attention" : "") + " · " +
    range("n_heads", "head") + " each on " + range("n_kv_heads", "KV head") + " · " +
    count(n_tokens, "token");
}

// What each role counts, for the buttons and for their meaning.
function build_roles() {
  const kinds = [...Object.keys(ROLES), "none"];
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
    ...Object.entries({ ...ROLES, ...SPREAD }).map(([key, { name }]) => [key, name])];
  $("shown").replaceChildren(...options.map(([value, name]) => element("option", { value }, name)));
  for (const [role, { name }] of Object.entries(ROLES)) {
    const n = heads.filter((head) => head.role === role).length;
    if (n) {
      $("source").append(element("option", { value: role },
        "the mean of " + count(n, name + " head")));
    }
  }
}

function show_left_out() {
  if (!data.left_out) return;
  const { heads: n, of, limit_mb } = data.left_out;
  $("left-out").hidden = false;
  $("left-out").textContent = "To keep this page under " + limit_mb + " MB, the maps of " + n +
    " of " + of + " heads were left out. Kept are those of heads with a role and of the " +
    "strongest others, as far as there was room; all scores are here. --heads-max sets the limit.";
}

// The head to begin with: the clearest of the most telling role that there is.
function first_head() {
  for (const role of ["induction", "previous", "duplicate", null, "first"]) {
    const some = heads.filter((head) => (head.role || null) === role && has_map(head));
    some.sort((a, b) => score_of(b, "role") - score_of(a, "role"));
    if (some.length) return some[0];
  }
  return heads[0];
}

// The row to begin with: its strongest pair, or the last row.
function first_place(head) {
  if (head.role === "induction" && has_map(head)) {
    let best = [n_tokens - 1, 0, 0];
    for (let i = 1; i < n_tokens; i++) {
      for (let j = 1; j < i; j++) {
        const weight = weight_at(head, i, j);
        if (data.tokens[j - 1].id === data.tokens[i].id && weight > best[2]) best = [i, j, weight];
      }
    }
    return best;
  }
  return (head.pairs && head.pairs[0]) || [n_tokens - 1, 0];
}

function search_goes() {
  const search = state.search.trim().toLowerCase();
  if (!search) return;
  const by_role = found_heads().find((head) => role_of(head).name.includes(search));
  const [token] = found_tokens();
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
  build_text();
  make_colours();
  const widest = widest_layer();
  grid.style.setProperty("--heads", widest);
  document.body.classList.toggle("wide", widest > 12);
  document.body.classList.toggle("short", widest <= 12 && data.layers.length <= 12);
  build_scale();
  build_grid();
  document.body.classList.toggle("no-heads", !heads.length);
  if (!heads.length) return;
  const head = first_head(), [row, column] = first_place(head);
  show({ head, row, column });
  let width = 0;
  new ResizeObserver(() => {
    if (map_box.clientWidth === width) return;
    width = map_box.clientWidth;
    redraw();
  }).observe(map_box.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

start();
