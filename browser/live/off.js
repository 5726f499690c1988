// Heads switched off, and what the text's loss becomes without each.
"use strict";

const key_of = (head) => head.layer.layer + "." + head.head;

function show_switches() {
  for (const head of heads) head.off = think.off.has(key_of(head));
  fill_grid();
  const n = think.off.size;
  $("all-on").hidden = !n;
  $("off-note").textContent = n ? count(n, "head") + " switched off" : "";
  show_switch();
}

function show_switch() {
  if (!state.head) return;
  $("switch").textContent = state.head.off ? "Switch on" : "Switch off";
  $("switch").setAttribute("aria-pressed", String(Boolean(state.head.off)));
}

function set_off(keys) {
  stop_writing();
  think.off = new Set([...keys].sort());
  show_switches();
  return update();
}

function toggle_head(head) {
  const keys = new Set(think.off), key = key_of(head);
  if (!keys.delete(key)) keys.add(key);
  say(head_name(head) + (keys.has(key) ? " switched off" : " switched on"));
  return set_off(keys);
}

// The first click on a cell shows its head.
let shown_before = null;
grid.addEventListener("pointerdown", () => { shown_before = state.head; }, true);
grid.addEventListener("click", (event) => {
  const head = event.target.closest('[role="gridcell"]')?.head;
  if (head && head === shown_before) toggle_head(head);
});
grid.addEventListener("keydown", (event) => {
  if ((event.key !== "Enter" && event.key !== " ") || !event.target.head) return;
  event.preventDefault();
  toggle_head(event.target.head);
});
$("switch").addEventListener("click", () => toggle_head(state.head));
$("all-on").addEventListener("click", () => { set_off([]); $("source").focus(); });
follow(["head"], show_switch);

// ---- which heads matter here ----

const MOST_AT_A_TIME = 1e9;  // tokens times bytes of weights, so that a new text soon has its turn
let measuring = null;

function forget_costs() {
  measuring = null;
  $("matter").hidden = $("progress").hidden = true;
  for (const head of heads) {
    delete head.cost;
    delete head.token_costs;
  }
  if (state.shown === "cost") show_number("role");
}

function show_number(shown) {
  build_choices();
  $("shown").value = shown;
  show({ shown });
}

async function measure_heads() {
  const { model } = think, ids = all_ids(), own = measuring = {}, off = off_list();
  const with_head = heads.filter((head) => !head.off);
  if (ids.length < 2) return tell("Two tokens are needed: a loss is that of a token that follows.");
  const at_a_time = Math.floor(MOST_AT_A_TIME / (ids.length * model.shape.weight_bytes));
  const n = Math.min(16, Math.max(1, at_a_time));
  Object.assign($("progress"), { max: with_head.length, value: 0, hidden: false });
  const [whole] = await model.losses(ids, [off]);
  for (let i = 0; i < with_head.length; i += n) {
    const some = with_head.slice(i, i + n);
    const lists = some.map((head) => (off ? off + "," : "") + key_of(head));
    const losses = await model.losses(ids, lists);
    if (measuring !== own) return undefined;
    some.forEach((head, k) => {
      head.token_costs = Array.from(losses[k], (loss, j) => loss - whole[j]);
      head.cost = head.token_costs.reduce((a, b) => a + b) / whole.length;
    });
    $("progress").value = i + some.length;
  }
  show_costs(with_head);
}

function show_costs(measured) {
  $("progress").hidden = true;
  use_data(data);
  const sorted = [...measured].sort((a, b) => b.cost - a.cost);
  const below = sorted.slice(5).filter(({ cost }) => cost < 0).slice(-3);
  $("matter").hidden = false;
  signed_list($("matter"), [...sorted.slice(0, 5), ...below].map((head) => ({ head, value: head.cost,
    role: head.role ?? "none", name: [icon(head.role), " ", head_name(head)] })), ({ head }) => show_head_of(head), 3);
  $("matter").append(element("li", { class: "note" }, "Nats a token that the text loses without the " +
    "head. Below 0: without it the text is likelier."));
  if (state.shown === "cost") fill_grid();
  show_number("cost");
  built_for = null;
  light_text();
  say("Most here: " + head_name(sorted[0]) + ", " + number(sorted[0].cost) + " nats a token");
}

$("measure").addEventListener("click", () =>
  measure_heads().catch(fail));
