// Each panel as a picture: its elements and the page's style in an SVG, which a PNG is drawn from.
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
  const variables = [...names].map((name) => `${name}: ${root.getPropertyValue(name)}`);
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
