// What the page shows now. A view changes it with show(), and every view follows.
"use strict";

const state = {
  head: null,         // the head on show
  row: 0, column: 0,  // the token that reads, and the one that is read; -1 is the sink
  source: "head",     // whose weights light the text: "head", "layer", or a role
  shown: "role",      // the score in the cells
  order: "layers",    // or "highest", "lowest"
  roles: new Set(),   // only these are not dimmed; empty: all
  search: "",
  thumbnails: false,
};
const views = [];  // functions of the set of names that changed

function show(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  Object.assign(state, changes);
  if (changed.size) for (const view of views) view(changed);
}

const follow = (names, view) =>
  views.push((changed) => { if (names.some((name) => changed.has(name))) view(changed); });

// A head of other texts begins at a place of its own.
function show_head_of(head) {
  const [row, column] = !state.head || kind_of(head) !== kind_of(state.head) ? first_place(head)
    : [state.row, state.column];
  show({ head, row, column });
}

// ---- elements ----

const $ = (id) => document.getElementById(id);

// element("b", {class: "x", onclick: f}, "text", child, ..): an element; text is never markup.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function icon(role) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", "#icon-" + (role || "none"));
  svg.append(use);
  return svg;
}

// A token as it stands in prose: kept apart from its neighbours' writing direction.
const token_chip = (token) => element("bdi", { class: "chip" }, label(token));

// Said to those who do not see it.
function say(text) {
  $("status").textContent = text;
}

let styles = {};  // kept, since the browser lays out what has changed to say one
const style_of = (name) =>
  (styles[name] ??= getComputedStyle(document.documentElement).getPropertyValue(name).trim());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { styles = {}; });

// Arrow keys, Home and End in a row of n things; null if the key is another.
function moved(key, at, n, backwards) {
  const step = { ArrowRight: backwards ? -1 : 1, ArrowLeft: backwards ? 1 : -1 }[key];
  if (step) return Math.min(n - 1, Math.max(0, at + step));
  return { Home: 0, End: n - 1 }[key] ?? null;
}
