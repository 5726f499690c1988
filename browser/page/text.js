// The text itself: a token picked lights what it looked at.
"use strict";

const tokens_box = $("tokens"), read_box = $("read");
const token_elements = [];  // of the text whose tokens look
let read_elements = [];       // and of the one that they look at, which is the same but for two texts

// A token as it stands in the text; what would not be seen gets a sign.
function token_text({ id, text }) {
  if (text === "") return "⟨" + id + "⟩";
  return text.replace(/\r?\n/g, "↵\n").replace(/\t/g, "⇥\t");
}

// Its word is marked without the spaces around it, which may stand in another line.
function token_span(token, attributes) {
  const text = token_text(token), word = text.trim() || text, at = text.indexOf(word);
  return element("span", { class: "token", "data-id": token.id, ...attributes }, text.slice(0, at),
    element("span", { class: "word" }, word), text.slice(at + word.length));
}

// The direction of most letters: the first ones may be a special token's, which are Latin.
function direction_of(tokens) {
  const text = tokens.map((token) => token.text).join("");
  const count_of = (letters) => (text.match(letters) || []).length;
  const leftward = count_of(/[\p{sc=Arab}\p{sc=Hebr}\p{sc=Syrc}\p{sc=Thaa}\p{sc=Nkoo}]/gu);
  return leftward * 2 > count_of(/\p{L}/gu) ? "rtl" : "ltr";
}

let built_for = null;  // the kind of head

const token_option = (token) => Object.assign(
  token_span(token, { role: "option", tabindex: -1, "aria-selected": "false" }), { token });

// Shows these tokens; those at the beginning that are there already stay.
function follow_tokens(tokens) {
  const same = token_elements.findIndex((span, i) => span.token !== tokens[i]);
  const kept = same < 0 ? token_elements.length : same;
  for (const span of token_elements.splice(kept)) span.remove();
  const added = tokens.slice(kept).map(token_option);
  token_elements.push(...added);
  tokens_box.append(...added);
}

function build_text() {
  const { head } = state, kind = kind_of(head);
  if (kind === built_for) return;
  built_for = kind;
  const rows = rows_of(head), columns = columns_of(head);
  tokens_box.dir = direction_of(rows);
  follow_tokens(rows);
  $("tokens-name").textContent = rows === SOURCE ? "Source" : "Target";
  $("read-side").hidden = rows === columns;
  read_elements = token_elements;
  if (rows !== columns) {
    read_box.dir = direction_of(columns);
    read_elements = columns.map((token) => token_span(token));
    read_box.replaceChildren(...read_elements);
  }
  build_sources(kind);
}

// Whose weights may light the text: those of heads of its kind.
function build_sources(kind) {
  for (const option of $("source").querySelectorAll(".of-role")) option.remove();
  for (const role of ROLE_NAMES) {
    const n = heads.filter((head) => head.role === role && kind_of(head) === kind).length;
    if (n) {
      $("source").append(element("option", { value: role, class: "of-role" },
        "the mean of " + count(n, "head") + " (" + ROLES[role].name + ")"));
    }
  }
  if (state.head.token_costs) {
    $("source").append(element("option", { value: "cost", class: "of-role" },
      "the loss without this head"));
  }
  $("source").value = state.source;
  if ($("source").value !== state.source) $("source").value = state.source = "head";
}

// The heads whose weights light the text, and their name.
function source_heads() {
  const { source, head } = state;
  if (source === "head") return { name: head_name(head), all: [head] };
  if (source === "layer") {
    return { name: head_name(head).replace(/, head.*/, ""), all: head.layer.heads };
  }
  return { name: ROLES[source].name, all: heads.filter((other) =>
    other.role === source && kind_of(other) === kind_of(head)) };
}

function text_note(name, all, with_map) {
  if (!with_map.length) return "The page holds no map for this: it was left out to keep it small.";
  const from = all.length === 1 ? name : "The mean of " + count(with_map.length, "head") +
    (with_map.length < all.length ? " of " + all.length + ", whose maps are in this page" : "") +
    " (" + name + ")";
  return from + ". Pick a token; what it looked at is tinted and underlined by its share.";
}

function light_token(span, weight) {
  if (span.weight === weight) return;
  span.weight = weight;
  span.style.setProperty("--weight", weight.toFixed(4));
  span.style.setProperty("--tint-by", Math.sqrt(weight).toFixed(3));
  span.classList.toggle("lit", weight >= 0.005);
}

// Said of a token in the list, which may be lit itself.
function name_token(span, token, weight) {
  if (weight >= 0.005) span.setAttribute("aria-label", label(token) + ", weight " + number(weight));
  else span.removeAttribute("aria-label");
}

function mark_picked(weight_of_token) {
  token_elements.forEach((span, j) => {
    const picked = j === state.row;
    name_token(span, rows_of(state.head)[j], weight_of_token(j));
    if (picked === span.classList.contains("picked")) return;
    span.classList.toggle("picked", picked);
    span.setAttribute("aria-selected", String(picked));
    span.tabIndex = picked ? 0 : -1;
  });
}

// Tints the text's tokens by how much less likely each is without the head.
function light_costs() {
  const costs = state.head.token_costs, most = Math.max(1, ...costs);
  const entries = [];
  for (const span of read_elements) light_token(span, 0);
  // Of an encoder's head the text that loses is the other one.
  const spans = rows_of(state.head) === TARGET ? token_elements : [];
  spans.forEach((span, i) => light_token(span, i ? Math.max(0, costs[i - 1] / most) : 0));
  strongest(costs, 8).forEach(([i, cost]) => entries.push({ row: i + 1, weight: cost,
    tokens: [token_chip(TARGET[i + 1]), element("small", {}, " " + (i + 1))] }));
  $("text-note").textContent = head_name(state.head) + ", switched off: tokens that are less " +
    "likely then, by nats. " + (state.head.cost < 0 ? "On average they are likelier." : "");
  $("looked-title").textContent = "Lose most without it";
  weight_list($("looked"), entries, ({ row }) => {
    if (spans.length) show({ row, column: Math.min(state.column, count_seen(state.head, row) - 1) });
  });
}

function light_text() {
  build_text();
  if (state.source === "cost") {
    mark_picked(() => 0);
    light_costs();
    return;
  }
  const { name, all } = source_heads();
  const with_map = all.filter(has_map);
  $("text-note").textContent = text_note(name, all, with_map);
  const { weights, sink } = with_map.length ? mean_row(with_map, state.row)
    : { weights: [], sink: 0 };
  read_elements.forEach((span, j) => light_token(span, weights[j] || 0));
  mark_picked((j) => (read_elements === token_elements ? weights[j] || 0 : 0));
  const [[most] = []] = strongest(weights, 1);
  const same = read_elements === token_elements;
  requestAnimationFrame(() =>  // when all is laid out
    reveal(tokens_box, token_elements[state.row], same ? token_elements[most] : null));
  if (!same) reveal(read_box, read_elements[most]);
  show_looked(weights, sink);
}

// Scrolls the box, and nothing around it, to a token, and to another one where both have room.
function reveal(box, span, other) {
  if (!span) return;
  const room = box.getBoundingClientRect(), both = other ? [span, other] : [span];
  const top = Math.min(...both.map((e) => place_of(e).top));
  const bottom = Math.max(...both.map((e) => place_of(e).bottom));
  if (bottom - top > room.height && other) reveal(box, span);
  else if (top < room.top || bottom > room.bottom) {
    box.scrollTop += (top + bottom - room.top - room.bottom) / 2;
  }
}

function show_looked(weights, sink) {
  const rows = rows_of(state.head), columns = columns_of(state.head);
  const entries = strongest(weights, 8).map(([j, weight]) => ({ column: j, weight,
    tokens: [token_chip(columns[j]), element("small", {},
      " " + j + (rows === columns && j === state.row ? ", itself" : ""))] }));
  if (sink >= 0.005) {
    entries.push({ column: SINK, weight: sink, tokens: [element("i", {}, "the sink")] });
    entries.sort((a, b) => b.weight - a.weight);
  }
  $("looked-title").replaceChildren(token_chip(rows[state.row]),
    element("small", {}, " " + state.row), " looked at");
  weight_list($("looked"), entries, ({ column }) => show({ column }));
}

function mark_found_tokens() {
  const mark = (box, spans, tokens) => {
    const found = new Set(found_tokens(tokens));
    spans.forEach((span, i) => span.classList.toggle("found-token", found.has(i)));
    if (found.size) reveal(box, spans[Math.min(...found)]);
  };
  mark(tokens_box, token_elements, rows_of(state.head));
  if (read_elements !== token_elements) mark(read_box, read_elements, columns_of(state.head));
}

function pick_token(i) {
  if (i < 0 || i >= token_elements.length) return;
  show({ row: i, column: Math.min(state.column, count_seen(state.head, i) - 1) });
  token_elements[i].focus();
}

const place_of = (span) => span.querySelector(".word").getBoundingClientRect();

// The token nearest to the one given in the line above (-1) or below (1).
function across_lines(i, direction) {
  const from = place_of(token_elements[i]);
  const middle = (from.left + from.right) / 2;
  let best = null;
  for (let j = i + direction; j >= 0 && j < token_elements.length; j += direction) {
    const rect = place_of(token_elements[j]);
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
      : moved(event.key, state.row, token_elements.length, backwards);
  if (to === null) return;
  event.preventDefault();
  pick_token(to);
}

tokens_box.addEventListener("click", (event) => {
  const i = token_elements.indexOf(event.target.closest(".token"));
  if (i >= 0) pick_token(i);
});
tokens_box.addEventListener("keydown", on_token_key);
read_box.addEventListener("click", (event) => {
  const column = read_elements.indexOf(event.target.closest(".token"));
  if (column >= 0) show({ column });
});
$("source").addEventListener("change", (event) => show({ source: event.target.value }));
follow(["head", "row", "source"], light_text);
follow(["search", "head"], mark_found_tokens);
