// What the numbers say of the head on show: its role in a sentence, its scores beside what uniform
// attention would give, its strongest pairs.
"use strict";

const times = (x) => (x >= 10 ? x.toFixed(0) : x.toFixed(1));

function in_words(head) {
  if (!ROLES[head.role]) {
    return "No simple role: none of its scores is at least 0.3 and at least 3 times the uniform " +
      "one.";
  }
  const score = head.scores[head.role], uniform = head.layer.uniform[head.role];
  const rows = head.layer.rows[head.role];
  return ROLES[head.role].words.replace("{score}", Math.round(score * 100) + " %") +
    " Uniform attention would put " + (uniform * 100).toFixed(uniform < 0.1 ? 1 : 0) + " % there" +
    (uniform > 0 ? ", so this is " + times(score / uniform) + " times as much" : "") + ". " +
    "Counted over " + count(rows, "row") + (rows < 10 ? ": few, so take it as a hint." : ".");
}

function score_row(head, role) {
  const score = head.scores[role], uniform = head.layer.uniform[role];
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--score", score || 0);
  bar.style.setProperty("--uniform", uniform || 0);
  return element("tr", { "data-role": role, class: head.role === role ? "its-role" : "" },
    element("th", { scope: "row" }, icon(role), ROLES[role].name, bar),
    element("td", {}, number(score)),
    element("td", {}, number(uniform)),
    element("td", {}, String(head.layer.rows[role])));
}

// A list of tokens with weights; picking one calls pick(entry).
function weight_list(list, entries, pick) {
  list.replaceChildren(...entries.map((entry) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--score", entry.weight);
    const button = element("button", { type: "button", onclick: () => pick(entry) },
      element("span", { class: "pair" }, ...entry.tokens), bar,
      element("span", { class: "number" }, number(entry.weight)));
    return element("li", {}, button);
  }));
}

function show_pairs(head) {
  const pairs = (head.pairs || []).map(([row, column, weight]) => ({ row, column, weight,
    tokens: [token_chip(rows_of(head)[row]), " ← ", token_chip(columns_of(head)[column])] }));
  $("pairs-title").hidden = !pairs.length;
  weight_list($("pairs"), pairs, ({ row, column }) => show({ row, column }));
}

function facts_in_words(head) {
  const layer = head.layer;
  const group = layer.heads.filter((other) => other.kv_head === head.kv_head);
  const facts = [layer.mixer === "latent attention" ? "Latent attention, one latent for all heads"
    : "Attention, KV head " + head.kv_head + (group.length > 1
      ? ", shared by heads " + group.map((other) => other.head).join(", ") : "")];
  if (layer.kind && !layer.window) facts.push(KINDS[layer.kind].means);
  if (layer.kv_source != null) facts.push("reads the keys and values of layer " + layer.kv_source);
  if (layer.window) facts.push(window_in_words(layer));
  if (head.sink) facts.push("has a sink, a column of its own");
  return facts.join("; ") + ".";
}

function show_head() {
  const head = state.head;
  $("head-title").replaceChildren(head_name(head) + ": ",
    element("span", { class: "role", "data-role": head.role || "none" }, icon(head.role),
      role_of(head).name));
  $("head-facts").textContent = facts_in_words(head);
  $("in-words").textContent = in_words(head);
  $("scores").tBodies[0].replaceChildren(...ROLE_NAMES
    .filter((role) => role in head.scores).map((role) => score_row(head, role)));
  $("spread").replaceChildren(...SPREAD_NAMES.filter((name) => name in head.scores)
    .flatMap((name) => [
      element("dt", {}, SPREAD[name].name, element("b", {}, number(head.scores[name]))),
      element("dd", {}, SPREAD[name].means)]));
  show_pairs(head);
}

follow(["head"], show_head);
