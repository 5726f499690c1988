// Pictures of the grid and of a map, as SVG; a PNG is that SVG drawn.
"use strict";

const escaped = (text) => String(text)
  .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
  .replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");

function svg_text(x, y, text, { fill = style_of("--ink"), size = FONT_SIZE, more = "" } = {}) {
  return `<text x="${x}" y="${y}" fill="${fill}" font-size="${size}" ${more}>` +
    `${escaped(text)}</text>`;
}

function svg_picture(width, height, parts) {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" ` +
    `viewBox="0 0 ${width} ${height}" font-family="${escaped(style_of("--sans"))}">` +
    `<rect width="100%" height="100%" fill="${style_of("--panel")}"/>` +
    parts.join("") + "</svg>";
}

// ---- a map ----

// One path for each of 64 shades: runs of equal weights are one rectangle.
function svg_map(head, map, x, y, cell) {
  const paths = new Map();
  for (let i = 0, at = 0; i < rows_of(head).length; i++) {
    const n = count_seen(head, i);
    for (let j = 0; j < n; ) {
      const shade = map[at + j] >> 2;
      let end = j + 1;
      while (end < n && map[at + end] >> 2 === shade) end++;
      if (!paths.has(shade)) paths.set(shade, []);
      paths.get(shade).push(`M${j} ${i}h${end - j}v1h${j - end}z`);
      j = end;
    }
    at += n;
  }
  const drawn = [...paths].map(([shade, runs]) =>
    `<path fill="${colour_of(Math.min(255, shade * 4 + 2))}" d="${runs.join("")}"/>`);
  return `<g transform="translate(${x} ${y}) scale(${cell})" shape-rendering="crispEdges">` +
    drawn.join("") + "</g>";
}

function map_picture() {
  const head = state.head, rows = rows_of(head), columns = columns_of(head);
  const longest = Math.max(rows.length, columns.length);
  const cell = Math.max(4, Math.min(14, Math.round(900 / longest)));
  const side = 110, sink = head.sink ? 22 : 0, x = side + sink, y = side + 30;
  const muted = style_of("--muted"), step = Math.ceil((FONT_SIZE + 1) / cell);
  const parts = [svg_text(12, 22, data.model + " · " + head_name(head) + " · " +
    role_of(head).name + (head.role ? " " + number(head.scores[head.role]) : ""), { size: 14 })];
  for (let i = 0; i < longest; i += step) {
    const middle = (i + 0.5) * cell + 4;
    if (i < rows.length) {
      parts.push(svg_text(side - 6, y + middle, short_label(rows[i]), { fill: muted,
        more: 'text-anchor="end"' }));
    }
    if (i < columns.length) {
      parts.push(svg_text(0, 0, short_label(columns[i]), { fill: muted,
        more: `transform="translate(${x + middle} ${y - 6}) rotate(-90)"` }));
    }
  }
  const { map, sink: sinks } = map_bytes(head);
  if (sink) {
    parts.push(svg_text(0, 0, "sink", { fill: muted,
      more: `transform="translate(${side + 11} ${y - 6}) rotate(-90)"` }));
    sinks.forEach((byte, i) => parts.push(`<rect x="${side}" y="${y + i * cell}" width="14" ` +
      `height="${cell}" fill="${colour_of(byte)}"/>`));
  }
  parts.push(svg_map(head, map, x, y, cell));
  return svg_picture(Math.max(360, x + columns.length * cell + 12), y + rows.length * cell + 12,
    parts);
}

// ---- the grid, as it stands on the page ----

function svg_icon(role, x, y) {
  return `<g transform="translate(${x} ${y}) scale(0.85)" fill="none" stroke-width="1.7" ` +
    `stroke="${style_of("--role-" + role)}">${$("icon-" + role).innerHTML}</g>`;
}

// Larger than it is, since not every program keeps the edges of pixels.
function svg_thumbnail(head, x, y, width) {
  const small = element("canvas"), canvas = element("canvas");
  paint_pooled(small, head, whole_map(head), 48);
  canvas.width = 4 * small.width;
  canvas.height = 4 * small.height;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  return `<image x="${x + 3}" y="${y + 3}" width="${width - 6}" height="${width - 6}" ` +
    `preserveAspectRatio="xMidYMin" href="${canvas.toDataURL()}"/>`;
}

function svg_cell(cell, origin) {
  const box = cell.getBoundingClientRect(), x = box.left - origin.left, y = box.top - origin.top;
  if (!cell.head) {
    return svg_text(x + 6, y + box.height / 2 + 4, cell.textContent,
      { fill: style_of("--muted") });
  }
  const role = cell.head.role, strength = Number(cell.style.getPropertyValue("--strength"));
  const colour = style_of("--role-" + (role || "none"));
  const parts = [`<rect x="${x}" y="${y}" width="${box.width}" height="${box.height}" rx="3" ` +
    `fill="${colour}" fill-opacity="${(role ? 0.08 + 0.3 * strength : 0.05).toFixed(3)}"/>`];
  if (state.thumbnails && has_map(cell.head)) {
    parts.push(svg_thumbnail(cell.head, x, y, box.width));
  }
  for (const part of cell.querySelectorAll(".place, .number")) {
    const place = part.getBoundingClientRect();
    parts.push(svg_text((place.left + place.right) / 2 - origin.left,
      (place.top + place.bottom) / 2 - origin.top + 4, part.textContent,
      { more: 'text-anchor="middle"' }));
  }
  if (role) {
    const place = cell.querySelector(".icon").getBoundingClientRect();
    parts.push(svg_icon(role, place.left - origin.left, place.top - origin.top));
  }
  if (cell.classList.contains("shares")) {
    const left = cell.classList.contains("opens") ? `M${x + 1} ${y + box.height - 1}v4` :
      `M${x - 2} ${y + box.height + 3}`;
    const right = cell.classList.contains("closes") ?
      `H${x + box.width - 1}v-4` : `H${x + box.width + 2}`;
    parts.push(`<path d="${left}${right}" fill="none" stroke="${style_of("--muted")}"/>`);
  }
  return parts.join("");
}

function grid_picture() {
  const box = grid.getBoundingClientRect(), margin = 14;
  const origin = { left: box.left - margin, top: box.top - margin - 24 };
  const parts = [svg_text(margin, 24, "Heads of " + data.model + ", " +
    count(TARGET.length + (two_texts ? SOURCE.length : 0), "token"), { size: 14 })];
  for (const name of grid.querySelectorAll('[role="rowheader"], .column-name, .kind')) {
    const rect = name.getBoundingClientRect();
    parts.push(svg_text(rect.left - origin.left + 4, rect.top - origin.top + rect.height / 2 + 4,
      name.textContent, { fill: style_of("--muted") }));
  }
  for (const cell of grid.querySelectorAll('[role="gridcell"]')) parts.push(svg_cell(cell, origin));
  let y = box.bottom - origin.top + 4;
  for (const role of [...ROLE_NAMES, "none"]) {
    if (!grid.querySelector(`[data-role="${role}"]`)) continue;
    y += 16;
    parts.push(svg_icon(role, margin, y - 9), svg_text(margin + 16, y, ROLES[role]?.name ??
      NO_ROLE.name + (state.shown === "role" ? ": the weight of its strongest pair" : ""),
    { fill: style_of("--muted") }));
  }
  return svg_picture(Math.ceil(Math.max(320, grid.scrollWidth + 2 * margin)), Math.ceil(y + 14),
    parts);
}

// ---- out of the page ----

const PICTURES = { grid: grid_picture, map: map_picture };  // the live page has one for each panel
const picture_name = (kind) =>
  kind === "grid" ? "heads" : kind !== "map" ? kind : (two_texts ? kind_of(state.head) + "-" : "") +
    "layer" + state.head.layer.layer + "-head" + state.head.head;

function save_file(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  say("Saved " + name);
}

async function copy_text(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied " + what + ".");
  } catch {
    tell("The browser did not let the page copy; save instead.");
  }
}

// Seen and heard.
function tell(text) {
  const toast = $("toast");
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => toast.classList.remove("shown"), 4000);
}

function png_of(svg) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const scale = Math.min(2, 8000 / Math.max(image.width, image.height));
      const canvas = element("canvas", { width: Math.ceil(image.width * scale),
        height: Math.ceil(image.height * scale) });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))));
    };
    image.onerror = () => reject(new Error("the picture could not be drawn"));
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
  });
}

const PICTURE_ACTIONS = {
  "Copy PNG": async (svg) => {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": png_of(svg) })]);
    tell("Copied the picture.");
  },
  "Save PNG": async (svg, name) => save_file(await png_of(svg), name + ".png"),
  "Copy SVG": (svg) => copy_text(svg, "the picture"),
  "Save SVG": async (svg, name) =>
    save_file(new Blob([svg], { type: "image/svg+xml" }), name + ".svg"),
};

async function take_picture(kind, action) {
  try {
    await PICTURE_ACTIONS[action](PICTURES[kind](), picture_name(kind));
  } catch {
    tell("The browser did not let the page do that; try to save instead.");
  }
}

for (const group of document.querySelectorAll("[data-picture]")) {
  group.append(...Object.keys(PICTURE_ACTIONS).map((action) => element("button",
    { type: "button", onclick: () => take_picture(group.dataset.picture, action) }, action)));
}
