// The map of a head on a canvas, tokens on both sides. The canvas is as large as the part in view
// and is drawn again as its room scrolls, so that a long text needs no huge picture.
"use strict";

const map_box = $("map-box"), map_room = $("map-room"), map_canvas = $("map");
const FONT_SIZE = 11;
const SINK = -1;  // the column of the sink

// ---- colours ----

let colours = null;  // 256 of them, for a byte of the map: r, g, b

function make_colours() {
  const stops = ["--map-0", "--map-1", "--map-2", "--map-3"].map((name) =>
    style_of(name).match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16)));
  colours = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at));
    for (let c = 0; c < 3; c++) {
      colours[i * 3 + c] = Math.round(stops[k][c] + (at - k) * (stops[k + 1][c] - stops[k][c]));
    }
  }
}

const colour_of = (byte) => "#" + [0, 1, 2].map((c) =>
  colours[byte * 3 + c].toString(16).padStart(2, "0")).join("");

// Paints a head's map in side pixels for the longer of its sides, or fewer. A pixel for several
// weights shows the largest, so that a thin diagonal does not fade.
function paint_pooled(canvas, head, map, side) {
  const n_rows = rows_of(head).length, n_columns = columns_of(head).length;
  const scale = Math.min(1, side / Math.max(n_rows, n_columns));
  const width = canvas.width = Math.max(1, Math.round(n_columns * scale));
  const height = canvas.height = Math.max(1, Math.round(n_rows * scale));
  const largest = new Int16Array(width * height).fill(-1);
  for (let i = 0, at = 0; i < n_rows; i++) {
    const y = Math.floor((i * height) / n_rows) * width;
    for (let j = 0; j < count_seen(head, i); j++, at++) {
      const pixel = y + Math.floor((j * width) / n_columns);
      if (map[at] > largest[pixel]) largest[pixel] = map[at];
    }
  }
  const image = new ImageData(width, height);
  for (let i = 0; i < largest.length; i++) {
    if (largest[i] < 0) continue;
    for (let c = 0; c < 3; c++) image.data[i * 4 + c] = colours[largest[i] * 3 + c];
    image.data[i * 4 + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// ---- layout: where rows and columns lie ----

let zoom = 1;
let layout = null;
let painted = null;  // the map at a pixel a weight or less, and what it was painted for

const label_widths = new Map();

function width_of(text) {
  if (!label_widths.has(text)) {
    const context = map_canvas.getContext("2d");
    context.font = FONT_SIZE + "px " + style_of("--sans");
    label_widths.set(text, context.measureText(text).width);
  }
  return label_widths.get(text);
}

function measure() {
  const rows = rows_of(state.head), columns = columns_of(state.head);
  map_box.style.overflow = zoom > 1 ? "auto" : "hidden";
  const width = map_box.offsetWidth, narrow = width < 420;
  let longest = 0;
  for (const token of rows === columns ? rows : [...rows, ...columns]) {
    longest = Math.max(longest, width_of(short_label(token)));
  }
  const side = Math.ceil(Math.min(longest, narrow ? 56 : 96)) + 14;
  const sink = state.head.sink ? 22 : 0;
  const room = width - side - sink - 4;
  const cell = Math.min(36, room / Math.max(rows.length, columns.length)) * zoom;
  const height = Math.min(room, Math.ceil(cell * rows.length)) + side;
  return { width, height, side, sink, cell, left: side + sink, top: side,
    map_width: cell * columns.length, map_height: cell * rows.length };
}

const short_label = (token) => {
  const text = label(token), letters = Array.from(text);
  return letters.length > 16 ? letters.slice(0, 15).join("") + "…" : text;
};

// How much a zoom may enlarge: up to cells that have room for their labels.
const max_zoom = () => (layout ? Math.max(1, (16 * zoom) / layout.cell) : 1);

function lay_out() {
  layout = measure();
  map_box.style.height = layout.height + "px";
  map_room.style.width = layout.left + layout.map_width + "px";
  map_room.style.height = layout.top + layout.map_height + "px";
  layout.width = map_box.clientWidth;  // without scroll bars
  layout.height = map_box.clientHeight;
  const ratio = window.devicePixelRatio || 1;
  map_canvas.style.width = layout.width + "px";
  map_canvas.style.height = layout.height + "px";
  map_canvas.width = Math.round(layout.width * ratio);
  map_canvas.height = Math.round(layout.height * ratio);
  $("zoom-in").disabled = zoom >= max_zoom();
  $("zoom-out").disabled = $("zoom-fit").disabled = zoom <= 1;
}

// ---- drawing ----

function painted_map() {
  const ratio = window.devicePixelRatio || 1, { head } = state;
  const side = Math.floor(Math.max(1, layout.map_width * ratio, layout.map_height * ratio));
  if (!painted || painted.head !== head || painted.side !== side || painted.colours !== colours) {
    const canvas = element("canvas");
    paint_pooled(canvas, head, map_bytes(head).map, side);
    painted = { head, side, colours, canvas };
  }
  return painted.canvas;
}

function draw_sink(context, top) {
  const { sink } = map_bytes(state.head), { cell, side } = layout;
  for (let i = 0; i < sink.length; i++) {
    const y = top + i * cell;
    if (y + cell < layout.top || y > layout.height) continue;
    context.fillStyle = colour_of(sink[i]);
    context.fillRect(side, y, layout.sink - 8, Math.max(1, cell));
  }
}

// Labels that have room, and always the one in question.
function draw_labels(tokens, at, from, to, which, draw) {
  const step = Math.max(1, Math.ceil((FONT_SIZE + 2) / layout.cell));
  for (let i = 0; i < tokens.length; i++) {
    const middle = at + (i + 0.5) * layout.cell;
    if (middle < from || middle > to) continue;
    const near = Math.abs(i - which) * layout.cell < FONT_SIZE + 3;
    if (i === which || (i % step === 0 && !near)) draw(short_label(tokens[i]), middle, i === which);
  }
}

function draw_left_label(context, text, y, strong) {
  context.fillStyle = style_of(strong ? "--ink" : "--muted");
  context.font = (strong ? "600 " : "") + FONT_SIZE + "px " + style_of("--sans");
  context.textAlign = "right";
  context.fillText(text, layout.side - 8, y, layout.side - 10);
}

// Upright where a token and a gap are no wider than its column.
function draw_top_label(context, text, x, strong) {
  context.save();
  context.fillStyle = style_of(strong ? "--ink" : "--muted");
  context.font = (strong ? "600 " : "") + FONT_SIZE + "px " + style_of("--sans");
  context.translate(x, layout.top - 8);
  const upright = context.measureText(text).width + 4 <= layout.cell;
  context.textAlign = upright ? "center" : "left";
  if (!upright) context.rotate(-Math.PI / 2);
  context.fillText(text, 0, upright ? -3 : 0, layout.top - 10);
  context.restore();
}

function draw_cross(context, x, y, row, column) {
  const { cell, side, left, sink } = layout, size = Math.max(cell, 3);
  context.strokeStyle = style_of("--accent");
  context.lineWidth = 1;
  context.globalAlpha = 0.55;
  context.strokeRect(side + 0.5, y + row * cell - 0.5,
    x + count_seen(state.head, row) * cell - side, size + 1);
  context.globalAlpha = 1;
  context.lineWidth = 2;
  const across = column === SINK ? side : x + column * cell;
  const wide = column === SINK ? left - side - 8 : size;
  if (column !== SINK || sink) {
    context.strokeRect(across - 1, y + row * cell - 1, wide + 2, size + 2);
  }
}

// What is drawn outside the rectangle does not show.
function draw_within(context, left, top, width, height, draw) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  draw();
  context.restore();
}

function draw_map() {
  if (!layout || !has_map(state.head) || !map_box.offsetWidth) return;
  const context = map_canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, layout.width, layout.height);
  context.textBaseline = "middle";
  const { left, top, side, width, height } = layout;
  const x = left - map_box.scrollLeft, y = top - map_box.scrollTop;
  const { row, column } = hovered || state;
  draw_labels(rows_of(state.head), y, top, height, row,
    (...rest) => draw_left_label(context, ...rest));
  draw_labels(columns_of(state.head), x, left, width, column,
    (...rest) => draw_top_label(context, ...rest));
  if (layout.sink) {
    draw_top_label(context, "sink", side + 7, column === SINK);
    draw_within(context, side - 1, top - 1, width, height, () => draw_sink(context, y));
  }
  draw_within(context, left - 1, top - 1, width, height, () => {
    context.imageSmoothingEnabled = false;
    context.drawImage(painted_map(), x, y, layout.map_width, layout.map_height);
  });
  draw_within(context, side - 1, top - 2, width, height,
    () => draw_cross(context, x, y, row, column));
}

let drawing = false;
function draw_soon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; draw_map(); });
}

// ---- the pointer and keys ----

let hovered = null;  // {row, column} under the pointer

function position_of(event) {
  const box = map_canvas.getBoundingClientRect();
  const px = event.clientX - box.left, py = event.clientY - box.top;
  const { cell, left, top, side } = layout;
  const row = Math.floor((py - top + map_box.scrollTop) / cell);
  let column = Math.floor((px - left + map_box.scrollLeft) / cell);
  if (px < left) column = layout.sink && px >= side ? SINK : state.column;
  const outside = row >= rows_of(state.head).length || column >= columns_of(state.head).length;
  if (py < top || row < 0 || outside) return null;
  return { row, column: Math.min(column, count_seen(state.head, row) - 1) };
}

const weight_here = (row, column) =>
  (column === SINK ? sink_at(state.head, row) : weight_at(state.head, row, column));

function write_readout() {
  if (!has_map(state.head)) return $("readout").replaceChildren();
  const { row, column } = hovered || state;
  const read = column === SINK ? "the sink" : token_chip(columns_of(state.head)[column]);
  $("readout").replaceChildren(token_chip(rows_of(state.head)[row]),
    element("small", {}, " " + row), " reads ",
    element("b", {}, number(weight_here(row, column))), " from ", read,
    element("small", {}, column === SINK ? "" : " " + column));
}

function describe_map() {
  const name = head_name(state.head), rows = rows_of(state.head);
  map_box.setAttribute("aria-label", name + ", " + count(rows.length, "row") +
    ". Row " + state.row + ", " + label(rows[state.row]));
}

function scroll_to_cross() {
  const { cell, left, top, width, height } = layout;
  const keep = (name, at, room) => {
    if (at < map_box[name]) map_box[name] = at - cell;
    else if (at + cell > map_box[name] + room) map_box[name] = at + 2 * cell - room;
  };
  keep("scrollLeft", Math.max(0, state.column) * cell, width - left);
  keep("scrollTop", state.row * cell, height - top);
}

function zoom_to(value) {
  const before = layout.cell;
  zoom = Math.min(max_zoom(), Math.max(1, value));
  lay_out();
  const grown = layout.cell / before;
  const keep = (name, room) => { map_box[name] = (map_box[name] + room / 2) * grown - room / 2; };
  keep("scrollLeft", layout.width - layout.left);
  keep("scrollTop", layout.height - layout.top);
  if (document.activeElement === map_box) scroll_to_cross();
  draw_soon();
}

function on_map_key(event) {
  if (event.altKey || event.metaKey || !has_map(state.head)) return;
  const zooms = { "+": zoom * 1.5, "=": zoom * 1.5, "-": zoom / 1.5, 0: 1 };
  let { row, column } = state;
  const first = state.head.sink ? SINK : 0, rows = rows_of(state.head);
  if (event.key in zooms && !event.ctrlKey) zoom_to(zooms[event.key]);
  else if (event.key === "ArrowUp") row = Math.max(0, row - 1);
  else if (event.key === "ArrowDown") row = Math.min(rows.length - 1, row + 1);
  else if (event.key === "ArrowLeft") column = Math.max(first, column - 1);
  else if (event.key === "ArrowRight") column = column + 1;
  else if (event.key === "Home") [row, column] = event.ctrlKey ? [0, first] : [row, first];
  else if (event.key === "End") [row, column] = [event.ctrlKey ? rows.length - 1 : row, Infinity];
  else if (event.key !== "Enter") return;
  event.preventDefault();
  hovered = null;
  column = Math.min(column, count_seen(state.head, row) - 1);
  show({ row, column });
  scroll_to_cross();
  say(label(rows[row]) + " reads " + number(weight_here(row, column)) + " from " +
    (column === SINK ? "the sink" : label(columns_of(state.head)[column])));
}

function hover(position) {
  hovered = position;
  write_readout();
  draw_soon();
}

map_canvas.addEventListener("pointermove", (event) => hover(position_of(event)));
map_canvas.addEventListener("pointerleave", () => hover(null));
map_canvas.addEventListener("click", (event) => {
  const at = position_of(event);
  if (at) show(at);
});
map_box.addEventListener("scroll", draw_soon);
map_box.addEventListener("keydown", on_map_key);
$("zoom-in").addEventListener("click", () => zoom_to(zoom * 1.5));
$("zoom-out").addEventListener("click", () => zoom_to(zoom / 1.5));
$("zoom-fit").addEventListener("click", () => zoom_to(1));

// The shades run with the square root, so that small weights are seen.
function build_scale() {
  $("scale").querySelector(".ticks").replaceChildren(...[0, 0.05, 0.2, 0.5, 1].map((weight) => {
    const tick = element("span", {}, String(weight));
    tick.style.left = Math.sqrt(weight) * 100 + "%";
    return tick;
  }));
}

function show_map() {
  const shown = has_map(state.head);
  for (const id of ["map-box", "map-keys", "scale"]) $(id).hidden = !shown;
  $("no-map").hidden = shown;
  hovered = null;
  if (shown && map_box.offsetWidth) {
    lay_out();
    draw_soon();
    describe_map();
  }
  write_readout();
}

follow(["head"], show_map);
follow(["row", "column"], () => {
  if (!has_map(state.head)) return;
  write_readout();
  describe_map();
  draw_soon();
});
