// The picture of the model, from left to right: the chosen token, the layers with their heads and
// networks, what comes next. Bands show how much each part adds to the answer, the line below the
// heads what has come together so far.
"use strict";

const whole = $("whole"), BAND = 9, LIT = 0.06;  // pixels of the thickest; the share that is lit

function svg_path(d, width, value, lit = true) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", d);
  path.setAttribute("stroke-width", width.toFixed(2));
  path.setAttribute("class", (value < 0 ? "against" : "") + (lit ? " lit" : ""));
  return path;
}

// Where things stand, in pixels of the picture.
function places() {
  const origin = whole.getBoundingClientRect();
  const of = (e) => {
    const { left, right, top, bottom } = e.getBoundingClientRect();
    return { left: left - origin.left, right: right - origin.left, top: top - origin.top,
      bottom: bottom - origin.top, middle: (top + bottom) / 2 - origin.top };
  };
  return { of, layers: cell_rows.map((cells) => ({ cells, ...of(cells[0].parentElement) })) };
}

// The bands of a layer: what each part reads and what it adds, by `share` of it.
function layer_bands(of, layer, y, next, share) {
  const bands = [];
  for (const cell of layer.cells) {
    const { left, right, middle } = of(cell), value = share(cell), size = Math.abs(value);
    const lit = size >= LIT, middle_x = (right + next) / 2;
    if (lit) {
      const from = left - Math.min(16, (next - right) / 2);
      bands.push(svg_path(`M${from} ${y}C${left - 4} ${y} ${from} ${middle} ${left} ${middle}`, 1, 0, false));
    }
    bands.push(svg_path(`M${right} ${middle}C${middle_x} ${middle} ${middle_x} ${y} ${next} ${y}`,
      Math.max(0.6, BAND * size), value, lit));
  }
  return bands;
}

// A cell's share of the largest part.
function shares() {
  if (!way || way.refused) return { of: () => 0, layer: () => 0, embedding: 0 };
  const { heads: all, ffn, n_heads, embedding } = way;
  const most = Math.max(1e-9, Math.abs(embedding), ...all.map(Math.abs), ...ffn.map(Math.abs));
  const sum = (l) => all.subarray(l * n_heads, (l + 1) * n_heads).reduce((a, b) => a + b, 0);
  const value = (cell, l) => (cell.head ? all[l * n_heads + cell.head.head]
    : cell.layer ? ffn[l] : sum(l));
  return { of: (cell, l) => value(cell, l) / most, layer: (l) => (sum(l) + ffn[l]) / most,
    embedding: embedding / most };
}

function draw_bands() {
  if (!cell_rows.length) return $("ribbons").replaceChildren();
  const { of, layers } = places(), share = shares(), end = of($("output"));
  const last = layers[0].cells.at(-1), start = of($("embedding"));  // above networks, or low in cells
  const y = last.layer ? of(last).top - 13 : of(last).bottom - 6;
  const bands = [];
  let sum = share.embedding, x = start.right;
  const known = way && !way.refused;
  const most = layers.reduce(([at, top], _, l) => [at + share.layer(l),
    Math.max(top, Math.abs(at + share.layer(l)))], [sum, Math.abs(sum)])[1];
  const line = (to) => bands.push(svg_path(`M${x} ${y}H${to}`,
    known ? Math.max(1.5, 1.3 * BAND * Math.abs(sum) / Math.max(1, most)) : 2, sum, Boolean(known)));
  layers.forEach((layer, l) => {
    const next = layers[l + 1]?.left ?? end.left, join = Math.min(next, layer.right +
      Math.max(14, Math.min(60, (next - layer.right) * 0.6)));
    line(join);
    [x, sum] = [join, sum + share.layer(l)];
    bands.push(...layer_bands(of, layer, y, join, (cell) => share.of(cell, l)));
  });
  line(end.left);
  $("ribbons").replaceChildren(...bands);
}

// What stands at both ends, and the sentence below the picture.
function draw_whole() {
  const token = way?.of;
  $("way-from").replaceChildren(...(token ? [token_chip(token)] : []));
  $("embedding").replaceChildren(element("small", {}, "embedding"), ...(token ? [token_chip(token),
    element("small", {}, String(token.id))] : []));
  $("output").replaceChildren(element("small", {}, "output"), ...(way?.likeliest ?? []).slice(0, 3)
    .map(({ id, probability }) => element("span", { class: "says" + (id === way.answer ? " own" : "") },
      token_chip(token_of(id)), " ", element("small", {}, percent(probability)))));
  $("way-note").replaceChildren(...sentence_of_way());
  requestAnimationFrame(draw_bands);  // which reads where things stand
}

function sentence_of_way() {
  if (!way) return [];
  const answer = token_chip(token_of(way.answer));
  if (way.refused) return ["What adds to ", answer, " cannot be said: ", way.refused];
  const parts = parts_of_way(), most = parts.filter(({ value }) => value > 0).slice(0, 3);
  const against = parts.find(({ value }) => value < 0);
  const said = ({ name, value }) => `${name} (${signed(value)})`;
  return ["For ", answer, ...(way.against >= 0 ? [" and not ", token_chip(token_of(way.against))] : []),
    " speak most: " + most.map(said).join(", ") + (against ? "; against: " + said(against) : "") + "."];
}

$("embedding").addEventListener("click", () => { show({ step: "text" }); text_box.focus(); });
$("output").addEventListener("click", () => { show({ step: "text" }); $("bars").querySelector("button")?.focus(); });

// A frame that leads the eye from a part's place in the picture to where it is open.
function lead(from, to) {
  to.scrollIntoView({ block: "nearest" });
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const frame = element("div", { class: "lead", "aria-hidden": "true" });
  document.body.append(frame);
  frame.animate([from, to].map((e, i) => {
    const { left, top, width, height } = e.getBoundingClientRect();
    return { left: left + "px", top: top + "px", width: width + "px", height: height + "px", opacity: 1 - 0.8 * i };
  }), { duration: 450, easing: "ease-in-out" }).onfinish = () => frame.remove();
}

// A click on a head, or on a layer's network, opens what it is: a head where one is changed stays so.
grid.addEventListener("click", (event) => {
  const cell = event.target.closest('[role="gridcell"], .layer-name');
  if (cell && (!cell.head || state.step === "text")) show({ step: "inside" });
  if (cell && !cell.head) show_layer(cell_rows.findIndex(([first]) => first.parentElement.contains(cell)));
  if (cell && state.step === "inside") lead(cell, $(cell.head ? "head-title" : "lens").closest(".panel"));
});
grid.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.target.head) event.target.click();
});
new ResizeObserver(draw_bands).observe(whole);
