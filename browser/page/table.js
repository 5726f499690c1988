// All scores as a table, made when it is opened, and as text with tabs.
"use strict";

const TABLE_COLUMNS = [
  ...(two_texts ? [["kind", (head) => KINDS[kind_of(head)].name]] : []),
  ["layer", (head) => head.layer.layer], ["head", (head) => head.head],
  ["KV head", (head) => head.kv_head], ["role", (head) => role_of(head).name],
  ...[...ROLE_NAMES, ...SPREAD_NAMES].map((name) =>
    [(ROLES[name] || SPREAD[name]).name, (head) => head.scores[name]]),
  ["map", (head) => (has_map(head) ? "here" : "left out")],
];
let sorted_by = { column: 0, sign: 1 };

function sorted_heads() {
  const value = TABLE_COLUMNS[sorted_by.column][1];
  return [...heads].sort((a, b) => {
    const x = value(a) ?? -1, y = value(b) ?? -1;
    return sorted_by.sign * (x < y ? -1 : x > y ? 1 : 0);
  });
}

function sort_table(column) {
  const again = sorted_by.column === column;
  sorted_by = { column, sign: again ? -sorted_by.sign : column < 4 + two_texts ? 1 : -1 };
  build_table();
  $("table-box").querySelectorAll("thead button")[column].focus();
}

function heading(name, column) {
  const on = sorted_by.column === column;
  return element("th", { scope: "col",
    "aria-sort": !on ? "none" : sorted_by.sign > 0 ? "ascending" : "descending" },
  element("button", { type: "button", onclick: () => sort_table(column) }, name,
    element("span", { "aria-hidden": "true" }, !on ? "" : sorted_by.sign > 0 ? " ↑" : " ↓")));
}

const cell_text = (value) =>
  (typeof value === "string" || Number.isInteger(value) ? String(value) : number(value));

function build_table() {
  const rows = sorted_heads().map((head) => element("tr", {}, ...TABLE_COLUMNS.map(
    ([, value]) => element("td", {}, cell_text(value(head))))));
  $("table-box").replaceChildren(element("table", { class: "all-scores" },
    element("caption", {}, "Scores of " + count(heads.length, "head")),
    element("thead", {}, element("tr", {}, ...TABLE_COLUMNS.map(([name], i) => heading(name, i)))),
    element("tbody", {}, ...rows)));
}

function table_text() {
  const lines = [TABLE_COLUMNS.map(([name]) => name)].concat(sorted_heads().map((head) =>
    TABLE_COLUMNS.map(([, value]) => {
      const x = value(head);
      return typeof x === "number" ? String(Number(x.toFixed(6))) : x ?? "";
    })));
  return lines.map((line) => line.join("\t") + "\n").join("");
}

$("table").addEventListener("toggle", () => {
  if ($("table").open && !$("table-box").firstChild) build_table();
});
$("copy-table").addEventListener("click", () => copy_text(table_text(), "the table"));
$("save-table").addEventListener("click", () =>
  save_file(new Blob([table_text()], { type: "text/tab-separated-values" }), "scores.tsv"));
