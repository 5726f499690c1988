// Fills in the parts of the head page that stay, and shows the first head.
"use strict";

function show_texts() {
  for (const shown of document.querySelectorAll(".two-texts")) shown.hidden = !two_texts;
  if (!two_texts) return;
  $("target").textContent = {
    given: "The target was given.",
    greedy: "The model wrote the target, the likeliest token each time.",
    sampled: "The model wrote the target, its tokens drawn by chance.",
  }[data.target];
}

// What each role counts, for the buttons and for their meaning.
function build_roles() {
  const kinds = [...ROLE_NAMES, "none"];
  $("roles").replaceChildren(...kinds.flatMap((role) => {
    const n = heads.filter((head) => (head.role || "none") === role).length;
    return !n ? [] : element("button", { type: "button", "aria-pressed": "false",
      "data-role": role, onclick: (event) => toggle_role(role, event.currentTarget) },
    icon(role), (ROLES[role] || NO_ROLE).name, element("b", {}, String(n)));
  }));
}

function toggle_role(role, button) {
  const roles = new Set(state.roles);
  if (!roles.delete(role)) roles.add(role);
  button.setAttribute("aria-pressed", String(roles.has(role)));
  show({ roles });
}

function show_left_out() {
  if (!data.left_out) return;
  const { heads: n, of, limit_mb } = data.left_out;
  $("left-out").hidden = false;
  $("left-out").textContent = "To keep this page under " + limit_mb + " MB, the maps of " + n +
    " of " + of + " heads were left out. Kept are those of heads with a role and of the " +
    "strongest others, as far as there was room; all scores are here. --heads-max sets the limit.";
}

function search_goes() {
  const search = state.search.trim().toLowerCase();
  if (!search) return;
  const by_role = found_heads().find((head) => role_of(head).name.includes(search));
  const [token] = found_tokens(rows_of(state.head));
  if (by_role) go_to_cell(cell_of.get(by_role));
  else if (token !== undefined) pick_token(token);
}

$("search").addEventListener("input", (event) => show({ search: event.target.value }));
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") search_goes();
});

function start() {
  document.title = "Heads of " + data.model;
  $("model").textContent = data.model;
  $("shape").textContent = shape_in_words();
  show_left_out();
  build_roles();
  build_meanings();
  show_texts();
  begin_views();
  if (!heads.length) return;
  show_head_of(first_head());
  try_thumbnails();
}

start();
