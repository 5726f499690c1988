// The text itself: a token picked lights what it looked at.
"use strict";

const tokens_box = $("tokens");
let token_elements = [];

// A token as it stands in the text; what would not be seen gets a sign.
function token_text(i) {
  const text = data.tokens[i].text;
  if (text === "") return "⟨" + data.tokens[i].id + "⟩";
  return text.replace(/\r?\n/g, "↵\n").replace(/\t/g, "⇥\t");
}

// The direction of most letters: the first ones may be a special token's, which are Latin.
function direction_of_text() {
  const text = data.tokens.map((token) => token.text).join("");
  const letters = (text.match(/\p{L}/gu) || []).length;
  const leftward = (text.match(/[\p{sc=Arab}\p{sc=Hebr}\p{sc=Syrc}\p{sc=Thaa}\p{sc=Nkoo}]/gu) || [])
    .length;
  return leftward * 2 > letters ? "rtl" : "ltr";
}

function build_text() {
  tokens_box.dir = direction_of_text();
  token_elements = data.tokens.map((_, i) => element("span", {
    role: "option", tabindex: -1, "aria-selected": "false", class: "token" }, token_text(i)));
  tokens_box.replaceChildren(...token_elements);
}

// The heads whose weights light the text, and their name.
function source_heads() {
  const { source, head } = state;
  if (source === "head") return { name: head_name(head), all: [head] };
  if (source === "layer") return { name: "Layer " + head.layer.layer, all: head.layer.heads };
  return { name: ROLES[source].name, all: heads.filter((other) => other.role === source) };
}

function text_note(name, all, with_map) {
  if (!with_map.length) return "The page holds no map for this: it was left out to keep it small.";
  const from = all.length === 1 ? name : "The mean of " + count(with_map.length, "head") +
    (with_map.length < all.length ? " of " + all.length + ", whose maps are in this page" : "") +
    " (" + name + ")";
  return from + ". Pick a token; what it looked at is tinted and underlined by its share.";
}

function light_token(span, weight, i) {
  span.style.setProperty("--weight", weight.toFixed(4));
  span.style.setProperty("--tint-by", Math.sqrt(weight).toFixed(3));
  span.classList.toggle("lit", weight >= 0.005);
  if (weight >= 0.005) span.setAttribute("aria-label", label(i) + ", weight " + number(weight));
  else span.removeAttribute("aria-label");
}

function light_text() {
  const { name, all } = source_heads();
  const with_map = all.filter(has_map);
  $("text-note").textContent = text_note(name, all, with_map);
  const { weights, sink } = with_map.length ? mean_row(with_map, state.row)
    : { weights: [], sink: 0 };
  token_elements.forEach((span, j) => {
    const picked = j === state.row;
    light_token(span, weights[j] || 0, j);
    span.classList.toggle("picked", picked);
    span.setAttribute("aria-selected", String(picked));
    span.tabIndex = picked ? 0 : -1;
  });
  show_looked(weights, sink);
}

function show_looked(weights, sink) {
  const entries = strongest(weights, 8).map(([j, weight]) => ({ column: j, weight,
    tokens: [token_chip(j),
      element("small", {}, " " + j + (j === state.row ? ", itself" : ""))] }));
  if (sink >= 0.005) {
    entries.push({ column: SINK, weight: sink, tokens: [element("i", {}, "the sink")] });
    entries.sort((a, b) => b.weight - a.weight);
  }
  $("looked-title").replaceChildren(token_chip(state.row), element("small", {}, " " + state.row),
    " looked at");
  weight_list($("looked"), entries, ({ column }) => show({ column }));
}

function mark_found_tokens() {
  const found = new Set(found_tokens());
  token_elements.forEach((span, i) => span.classList.toggle("found-token", found.has(i)));
}

function pick_token(i) {
  if (i < 0 || i >= n_tokens) return;
  show({ row: i, column: Math.min(state.column, i) });
  token_elements[i].focus();
}

// The token nearest to the one given in the line above (-1) or below (1).
function across_lines(i, direction) {
  const from = token_elements[i].getBoundingClientRect();
  const middle = (from.left + from.right) / 2;
  let best = null;
  for (let j = i + direction; j >= 0 && j < n_tokens; j += direction) {
    const rect = token_elements[j].getBoundingClientRect();
    const lines = direction * (rect.top - from.top) / Math.max(1, from.height);
    if (lines < 0.5) continue;
    const gap = Math.abs((rect.left + rect.right) / 2 - middle);
    if (best && Math.abs(rect.top - best.top) > from.height / 2) break;
    if (!best || gap < best.gap) best = { j, gap, top: rect.top };
  }
  return best ? best.j : null;
}

function on_token_key(event) {
  if (event.altKey || event.metaKey) return;
  const backwards = getComputedStyle(tokens_box).direction === "rtl";
  const to = event.key === "ArrowUp" ? across_lines(state.row, -1)
    : event.key === "ArrowDown" ? across_lines(state.row, 1)
      : moved(event.key, state.row, n_tokens, backwards);
  if (to === null) return;
  event.preventDefault();
  pick_token(to);
}

tokens_box.addEventListener("click", (event) => {
  const i = token_elements.indexOf(event.target.closest(".token"));
  if (i >= 0) pick_token(i);
});
tokens_box.addEventListener("keydown", on_token_key);
$("source").addEventListener("change", (event) => show({ source: event.target.value }));
follow(["head", "row", "source"], light_text);
follow(["search"], mark_found_tokens);
