// What adds to the answer after the chosen token: the parts of its logit (direct logit attribution),
// which the picture shows as bands and a list as bars.
"use strict";

const N_ANSWERS = 8, N_PARTS = 12;
think.answer = think.against = null;  // ids; null: the likeliest, and less nothing
let way = null;                       // what was found, as Looking's way() gives it

const way_ids = () => data.tokens.slice(0, row_after_pass() + 1).map((token) => token.id);

async function read_way() {
  const { model, steers } = think, ids = way_ids();
  const asked = { answer: think.answer ?? -1, against: think.against ?? -1, off: off_list(), steers };
  if (!ids.length) return () => show_way(null);
  $("whole").classList.add("older");
  const found = await newest_of("way", (side) => side.way(ids, asked, N_ANSWERS));
  if (!found || think.model !== model) return null;
  found.of = data.tokens[ids.length - 1];
  await texts_of([...found.likeliest.map(({ id }) => id), found.answer, found.against]
    .filter((id) => id >= 0));
  return () => show_way(found);
}

function show_way(found) {
  way = found;
  $("whole").classList.remove("older");
  draw_whole();
  show_parts();
  if (think.logits) show_command();
}

const token_of = (id) => ({ id, text: by_id.get(id) ?? "" });

// The parts with their names, the largest first; of a head it is the head itself.
function parts_of_way() {
  const parts = [{ name: "the embedding", of: "embedding", value: way.embedding }];
  data.layers.forEach((layer, l) => {
    for (const head of layer.heads ?? []) {
      parts.push({ name: head_name(head), head, value: way.heads[l * way.n_heads + head.head] });
    }
    const mixer = layer.heads ? 0 : way.heads.subarray(l * way.n_heads, (l + 1) * way.n_heads)
      .reduce((a, b) => a + b, 0);
    if (mixer) parts.push({ name: `Layer ${l}, ${layer.mixer}`, layer, value: mixer });
    parts.push({ name: `Layer ${l}, network`, layer, network: true, value: way.ffn[l] });
  });
  parts.push({ name: "biases", of: "rest", value: way.rest });
  return parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

// A list of numbers with a sign, as bars to both sides of a line.
function signed_list(list, entries, pick, digits = 2) {
  const most = Math.max(1e-9, ...entries.map(({ value }) => Math.abs(value)));
  list.replaceChildren(...entries.map((entry) => {
    const bar = element("span", { class: entry.value < 0 ? "both below" : "both", "aria-hidden": "true" });
    bar.style.setProperty("--score", Math.abs(entry.value) / most);
    return element("li", {}, element("button", { type: "button", onclick: () => pick(entry) },
      element("span", { "data-role": entry.role ?? null }, ...[entry.name].flat()), bar,
      element("span", { class: "number" }, signed(entry.value, digits))));
  }));
}

const fixed = (x, digits = 2) => x.toFixed(digits).replace("-", "−");
const signed = (x, digits = 2) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(digits);

// What a part stands for is shown where it is.
function show_part({ head, layer, of }) {
  if (head) show_head_of(head);
  if (head || layer) show({ step: "inside" });
  else if (of === "embedding") show({ step: "text" });
}

function show_parts() {
  const options = (first, without) => [element("option", { value: "" }, first),
    ...(way?.likeliest ?? []).filter(({ id }) => id !== without).map(({ id, probability }) =>
      element("option", { value: id }, `${label(token_of(id))} ${percent(probability)}`))];
  $("answer").replaceChildren(...options("the likeliest", -1));
  $("against").replaceChildren(...options("nothing", way?.answer));
  for (const name of ["answer", "against"]) {
    const id = think[name];
    if (id !== null && ![...$(name).options].some(({ value }) => value === String(id))) {
      $(name).append(element("option", { value: id }, label(token_of(id))));
    }
    $(name).value = id ?? "";
  }
  if (!way || way.refused) {
    $("parts").replaceChildren();
    $("parts-note").textContent = way?.refused ?? "";
    return;
  }
  const all = parts_of_way();
  signed_list($("parts"), all.slice(0, N_PARTS), show_part);
  $("parts-note").textContent = `Logits. ${all.length > N_PARTS ? `${all.length - N_PARTS} smaller ` +
    `parts come to ${signed(all.slice(N_PARTS).reduce((sum, { value }) => sum + value, 0))}. ` : ""}` +
    `All add up to ${signed(way.total)}; the model says ${signed(way.logit)}.` +
    (think.steers.length ? " All of it without steering." : "");
}

for (const name of ["answer", "against"]) {
  $(name).addEventListener("change", ({ target: { value } }) => {
    think[name] = value === "" ? null : Number(value);
    show_read(read_way());
  });
}
follow(["row"], () => { if (!running) show_read(read_way()); });
after_pass.push(meanwhile(read_way));
