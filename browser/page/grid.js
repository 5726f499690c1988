// The grid of layers and heads: a role and a number in each cell, brackets around those that share
// a KV head. Heads in order of a score stand in plain rows instead. The live page turns the grid, so
// that layers go from left to right, and gives them a cell for their network.
"use strict";

const grid = $("grid"), grid_box = $("grid-box");
let cell_rows = [];           // the cells, as arrow keys see them
const cell_of = new Map();    // of a head

const head_name = (head) => (two_texts ? KINDS[kind_of(head)].name + " layer " : "Layer ") +
  head.layer.layer + ", head " + head.head;

// What a cell says to those who do not see where it stands; its number follows.
function heard_of(head) {
  const what = state.shown !== "role" ? ", " + (ROLES[state.shown] || SPREAD[state.shown]).name
    : head.role ? "" : ", strongest pair";
  return head_name(head) + ", KV head " + head.kv_head + ", " + role_of(head).name +
    (head.off ? ", switched off" : "") + (has_map(head) ? "" : ", map left out") + what + " ";
}

// A bracket opens at the first head of a KV group and closes at the last.
function bracket_of(head) {
  const group = head.layer.heads.filter((other) => other.kv_head === head.kv_head);
  if (group.length === 1) return "";
  return " shares" + (group[0] === head ? " opens" : "") +
    (group[group.length - 1] === head ? " closes" : "");
}

function head_cell(head, sorted) {
  const cell = element("div", {
    role: "gridcell", tabindex: -1, "aria-selected": "false",
    class: "cell" + (sorted ? "" : bracket_of(head)),
  });
  if (!has_map(head)) cell.classList.add("without-map");
  if (sorted) {
    cell.append(element("span", { class: "place", "aria-hidden": "true" },
      (two_texts ? KINDS[kind_of(head)].short : "") + head.layer.layer + "·" + head.head));
  }
  cell.append(element("span", { class: "only-heard" }), element("span", { class: "face" },
    element("span", { class: "number" })));
  cell.head = head;
  cell_of.set(head, cell);
  return cell;
}

// What changes without a new grid; what does not is left, since its cell would be laid out again.
function fill_cell(cell) {
  const write = (e, text) => { if (e.textContent !== text) e.textContent = text; };
  const score = score_of(cell.head, state.shown), role = cell.head.role || "none";
  if (cell.dataset.role !== role) {
    cell.dataset.role = role;
    cell.querySelector(".icon")?.remove();
    cell.querySelector(".face").prepend(icon(role));
  }
  cell.classList.toggle("off", Boolean(cell.head.off));
  write(cell.querySelector(".number"), short_number(score));
  const strength = Math.min(1, Math.max(0, score || 0));
  cell.style.setProperty("--strength", strength.toFixed(2));
  write(cell.querySelector(".only-heard"), heard_of(cell.head));
}

const window_in_words = (layer) => (layer.kind === "encoder"
  ? "sees the tokens less than " + layer.window + " away"
  : "sees the last " + layer.window + " tokens");

function layer_row(layer) {
  const row = element("div", { role: "row", class: "layer" });
  const name = element("div", { role: "rowheader", class: "layer-name" }, String(layer.layer));
  name.setAttribute("aria-label", "Layer " + layer.layer);
  if (layer.window) {
    const sees = window_in_words(layer);
    name.prepend(element("small", { title: sees }, "w" + layer.window), " ");
    name.setAttribute("aria-label", "Layer " + layer.layer + ", " + sees);
  }
  row.append(name);
  const cells = layer.heads ? layer.heads.map((head) => head_cell(head, false))
    : [element("div", { role: "gridcell", tabindex: -1, class: "cell no-attention" },
      turned ? layer.mixer : "no attention here (" + layer.mixer + ")")];
  if (layer.network) cells.push(network_cell(layer));
  row.append(...cells);
  cell_rows.push(cells);
  return row;
}

const turned = grid.classList.contains("turned");

const network_cell = (layer) => Object.assign(element("div", { role: "gridcell", tabindex: -1,
  class: "cell network" }, element("span", { class: "only-heard" }, `Layer ${layer.layer}, `),
element("span", { class: "face" }, "net")), { layer });

const widest_layer = () =>
  Math.max(0, ...data.layers.map((layer) => (layer.heads || []).length));

function heading_row() {
  const row = element("div", { role: "row", class: "layer column-names" },
    element("div", { role: "columnheader", class: "layer-name" }, "layer"));
  for (let h = 0; h < widest_layer(); h++) {
    row.append(element("div", { role: "columnheader", class: "column-name",
      "aria-label": "Head " + h }, String(h)));
  }
  return row;
}

// What the layers below it are, where there are several kinds.
function kind_row(kind) {
  return element("div", { role: "row", class: "kind" },
    element("div", { role: "columnheader" }, element("b", {}, KINDS[kind].name),
      ": " + KINDS[kind].means));
}

function rows_by_layer() {
  return [heading_row(), ...data.layers.flatMap((layer, i) => {
    const begins = two_texts && (!i || data.layers[i - 1].kind !== layer.kind);
    return begins ? [kind_row(layer.kind), layer_row(layer)] : [layer_row(layer)];
  })];
}

function rows_by_score() {
  const sign = state.order === "highest" ? -1 : 1;
  const has = (head) => state.shown === "role" || state.shown in head.scores;
  const sorted = heads.filter(has).sort((a, b) =>
    sign * ((score_of(a, state.shown) ?? -1) - (score_of(b, state.shown) ?? -1)));
  const width = Math.max(4, widest_layer()), rows = [];
  for (let start = 0; start < sorted.length; start += width) {
    const cells = sorted.slice(start, start + width).map((head) => head_cell(head, true));
    cell_rows.push(cells);
    rows.push(element("div", { role: "row", class: "layer" }, ...cells));
  }
  return rows;
}

function build_grid() {
  cell_rows = [];
  cell_of.clear();
  grid.replaceChildren(...(state.order === "layers" ? rows_by_layer() : rows_by_score()));
  grid.classList.toggle("with-windows", data.layers.some((layer) => layer.window));
  grid.classList.toggle("sorted", state.order !== "layers");
  fill_grid();
  dim_cells();
  mark_cell();
  draw_thumbnails();
}

function describe_grid() {
  const shared = heads.some((head) => bracket_of(head));
  const unnamed = state.shown === "role" && heads.some((head) => !head.role);
  $("reading").textContent = (unnamed ? "Grey: no simple role; the number is the weight of the " +
    "strongest pair of tokens (one with itself, or with the first, is no pair). " : "") +
    (state.order !== "layers" ? "5·2: layer 5, head 2. "
      : shared ? "A bracket joins the heads that share a KV head. "
        : heads.length ? "Every head has a KV head of its own. " : "") +
    (data.left_out ? "A dotted edge: its map was left out. " : "");
}

function fill_grid() {
  for (const cell of cell_of.values()) fill_cell(cell);
  describe_grid();
}

// ---- search and roles dim the others ----

function found_heads() {
  const search = state.search.trim().toLowerCase();
  const found = new Map([TARGET, SOURCE].map((text) => [text, new Set(found_tokens(text))]));
  return heads.filter((head) => {
    if (state.roles.size && !state.roles.has(head.role || "none")) return false;
    return !search || role_of(head).name.includes(search) ||
      (head.pairs || []).some(([i, j]) =>
        found.get(rows_of(head)).has(i) || found.get(columns_of(head)).has(j));
  });
}

// Tokens of a text that hold a part of what is searched, which may run over several of them.
function found_tokens(tokens) {
  const search = state.search.trim().toLowerCase();
  if (!search) return [];
  const starts = [], found = new Set();
  let text = "";
  for (const token of tokens) {
    starts.push(text.length);
    text += token.text.toLowerCase();
  }
  for (let at = text.indexOf(search); at >= 0; at = text.indexOf(search, at + 1)) {
    let i = starts.findLastIndex((start) => start <= at);
    for (; i < tokens.length && starts[i] < at + search.length; i++) found.add(i);
  }
  return [...found];
}

function dim_cells() {
  if (!$("search")) return;
  const kept = new Set(found_heads());
  for (const [head, cell] of cell_of) cell.classList.toggle("dimmed", !kept.has(head));
  const searched = Boolean(state.search.trim() || state.roles.size);
  const n = found_tokens(TARGET).length + (two_texts ? found_tokens(SOURCE).length : 0);
  grid.classList.toggle("searched", searched);
  $("found").textContent = !searched ? ""
    : count(kept.size, "head") + (state.search.trim()
      ? " (by role, or by its strongest pairs) and " + count(n, "token")
      : "");
  if (searched) {
    cell_rows.flat().find((cell) => kept.has(cell.head))
      ?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

// ---- the cell on show, and keys ----

function mark_cell() {
  for (const marked of grid.querySelectorAll('[tabindex="0"], [aria-selected="true"]')) {
    marked.tabIndex = -1;
    if (marked.head) marked.setAttribute("aria-selected", "false");
  }
  const cell = cell_of.get(state.head) || (cell_rows[0] && cell_rows[0][0]);
  if (!cell) return;
  cell.tabIndex = 0;
  if (cell.head) cell.setAttribute("aria-selected", "true");
}

function go_to_cell(cell) {
  if (!cell) return;
  if (cell.head) show_head_of(cell.head);
  for (const other of grid.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

const TURNED = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp",
  ArrowRight: "ArrowDown" };

function on_grid_key(event) {
  const y = cell_rows.findIndex((cells) => cells.includes(event.target));
  if (y < 0 || event.altKey || event.metaKey) return;
  const key = turned ? TURNED[event.key] ?? event.key : event.key;
  const cells = cell_rows[y], x = cells.indexOf(event.target), all = event.ctrlKey;
  const rows = { ArrowUp: y - 1, ArrowDown: y + 1, PageUp: y - 8, PageDown: y + 8 };
  let to = null;
  if (key in rows && !all) {
    const row = cell_rows[Math.min(cell_rows.length - 1, Math.max(0, rows[key]))];
    to = row[Math.min(row.length - 1, x)];
  } else if (all && key === "Home") to = cell_rows[0][0];
  else if (all && key === "End") to = cell_rows[cell_rows.length - 1].at(-1);
  else if (!all) to = cells[moved(key, x, cells.length)];
  if (!to) return;
  event.preventDefault();
  go_to_cell(to);
}

// ---- small maps, drawn when they come into view ----

function draw_thumbnail(cell) {
  const canvas = cell.querySelector("canvas") ||
    element("canvas", { class: "thumbnail", "aria-hidden": "true" });
  paint_pooled(canvas, cell.head, whole_map(cell.head), 48);
  canvas.style.aspectRatio = canvas.width + " / " + canvas.height;
  cell.prepend(canvas);
}

const in_view = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    in_view.unobserve(target);
    if (!target.querySelector("canvas")) draw_thumbnail(target);
  }
}, { root: grid_box, rootMargin: "200px" });

function draw_thumbnails() {
  in_view.disconnect();
  grid.classList.toggle("with-maps", state.thumbnails);
  for (const [head, cell] of cell_of) {
    cell.querySelector("canvas")?.remove();
    if (state.thumbnails && has_map(head)) in_view.observe(cell);
  }
}

// Small maps from the start, where all of the grid is still in view with them.
function try_thumbnails() {
  show({ thumbnails: true });
  const fit = grid_box.scrollHeight <= Math.min(grid_box.clientHeight, innerHeight) &&
    grid_box.scrollWidth <= grid_box.clientWidth;
  show({ thumbnails: fit });
  $("thumbnails").checked = fit;
}

grid.addEventListener("click", (event) => go_to_cell(event.target.closest('[role="gridcell"]')));
grid.addEventListener("keydown", on_grid_key);
follow(["order"], build_grid);
follow(["shown"], () => (state.order === "layers" ? fill_grid() : build_grid()));
follow(["search", "roles"], dim_cells);
follow(["head"], mark_cell);
follow(["thumbnails"], draw_thumbnails);
