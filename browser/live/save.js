// What leaves the page, and comes back: experiments (docs/heads.md), and each panel as a picture, its
// elements and the page's style in an SVG, which a PNG is drawn from.
"use strict";

const PAINTED = ["font-family", "font-size", "line-height", "color", "background-color"];

function panel_picture(panel) {
  const { width, height } = panel.getBoundingClientRect(), copy = panel.cloneNode(true);
  const canvases = [...panel.querySelectorAll("canvas")];
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const { width: w, height: h } = canvases[i].getBoundingClientRect();
    canvas.replaceWith(element("img", { class: canvas.className, src: canvases[i].toDataURL(),
      style: `width: ${w}px; height: ${h}px; image-rendering: pixelated; opacity: ${canvas.style.opacity || 1}` }));
  });
  copy.querySelector(".of-panel")?.remove();
  const root = getComputedStyle(document.documentElement), body = getComputedStyle(document.body);
  const sheet = [...document.querySelectorAll("style")].map((style) => style.textContent).join("");
  const names = new Set(["--columns", "--heads", ...sheet.match(/--[a-z0-9-]+(?=:)/g)]);
  const variables = [...names].map((name) => `${name}: ${root.getPropertyValue(name)}`).filter((one) => !/: $/.test(one));
  const box = element("div", { style: [...variables, ...PAINTED.map((name) => `${name}: ${body.getPropertyValue(name)}`),
    "padding: 0", "margin: 0"].join(";") }, element("style", {}, sheet),
    document.querySelector(".symbols").cloneNode(true), copy);
  const html = new XMLSerializer().serializeToString(box);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${Math.ceil(width)}" height="${Math.ceil(height)}">` +
    `<foreignObject width="100%" height="100%">${html}</foreignObject></svg>`;
}

for (const panel of document.querySelectorAll(".panel:not(.about)")) {
  const kind = panel.classList[1], title = panel.querySelector("h2").textContent;
  PICTURES[kind] = () => panel_picture(panel);
  panel.append(element("div", { class: "of-panel pictures" }, ...["PNG", "SVG"].map((type) => element("button",
    { type: "button", "aria-label": `${type} of this panel`, onclick: () => take_picture(kind, "Save " + type) }, type))));
}

// ---- experiments ----

function described() {
  const found = { text: all_ids(), attribute: Boolean(way && !way.refused) };
  if (think.off.size) found.off = off_list();
  if (think.steers.length) {
    found.steer = think.steers.map((one) => ({ ...one, vector: Array.from(one.vector) }));
  }
  const { answer, against, corrupted } = patch?.results ? patch : way;
  if (corrupted) Object.assign(found, { corrupted, patch: "heads" });
  return { ...found, metric: against >= 0 ? "difference" : "log_probability", answer,
    ...(against >= 0 && { against }) };
}

async function save_experiment() {
  if (!way) return;
  const result = await (await beside()).experiment(described());
  $("sum").textContent = "SHA-256 of the result: " + result.sha256;
  save_file(new Blob([JSON.stringify(result) + "\n"], { type: "application/json" }), "experiment.json");
}

// Sets the page up as the file says; a result is run again.
async function open_experiment(file) {
  complain("");
  try {
    const given = JSON.parse(await file.text()), what = given.experiment ?? given, { model } = think;
    const differs = given.sha256 ? await (await beside()).verify(given) : null;
    const text = (one) => (typeof one === "string" ? one : model.decode(one));
    const link = new URLSearchParams({ m: think.name.replace(/\.bin$/, ""), step: "change", p: await text(what.text) });
    if (!think.path.includes("/")) link.set("m", think.name);
    if (what.corrupted) link.set("c", await text(what.corrupted));
    if (what.off) link.set("off", what.off);
    history.replaceState(null, "", "#" + link);
    await follow_link();
    if (what.steer?.length) {
      think.steers = what.steer.map((one) => ({ ...one, vector: Float32Array.from(one.vector) }));
      await update();
    }
    $("sum").textContent = !given.sha256 ? "" : differs ? "It does not hold: " + differs
      : "It holds, run again here: " + given.sha256;
  } catch (error) {
    complain(`${file.name}: ${error.message}`);
  }
}

$("save-experiment").addEventListener("click", () => save_experiment().catch(fail));
ask_for_file("open-experiment", "experiment", open_experiment);
