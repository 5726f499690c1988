// Another model beside this one, on the same text: a built-in one, a file, or this one with an adapter.
"use strict";

const N_COMPARED = 6;
let other = null;  // { model, name, layers, sequence }

// What no checkpoint is may be an adapter of the model that is open.
async function open_other(source, name) {
  const old = other, { model } = think;
  let refused, made = await open_engine(source).catch((error) => { refused = error; });
  if (refused) {
    made = await open_engine(think.source);
    try {
      await made.adapt(new Uint8Array(await new Blob([source]).arrayBuffer()));
    } catch (error) {
      made.close();
      throw /adapter/.test(refused.message) ? error : refused;
    }
    name = `${think.name} with ${name}`;
  }
  other = { model: made, name, layers: await made.layers(), sequence: await made.sequence(), of: model };
  old?.model.close();
  $("other").querySelector(".dropped")?.remove();
  if (!BUILT_IN[name]) $("other").append(element("option", { value: name, class: "dropped" }, name));
  $("other").value = name;
}

function close_other() {
  other?.model.close();
  other = null;
}

const change_other = (name, open) => in_turn(async () => {
  complain("");
  try {
    await open();
  } catch (error) {
    close_other();
    $("other").value = "";
    complain(`${name}: ${error.message}`);
  }
  show_read(read_compare(all_ids()));
});

// The bytes round(255 sqrt(weight)) of a head's map.
function map_of(looks, layer, head, n) {
  const map = new Uint8Array((n * (n + 1)) / 2);
  for (const look of looks.filter((one) => one.layer === layer && one.head === head)) {
    const begin = (look.position * (look.position + 1)) / 2 + look.first;
    look.weights.forEach((weight, j) => { map[begin + j] = byte_of(weight); });
  }
  return map;
}

async function read_compare(ids) {
  const asked = other, { head } = state;
  if (!asked || !ids.length || !head) return () => { $("compared").hidden = true; };
  const text = think.taken.length ? await think.model.decode(ids) : think.prompt;
  const theirs = Array.from(await asked.model.tokenize(text));
  await asked.model.rewind(asked.sequence, 0);
  const found = await asked.model.look(asked.sequence, theirs, 0, { attention: true });
  const top = largest(found.logits, N_COMPARED), names = await asked.model.texts(top);
  const own = largest(think.logits, N_COMPARED), mine = await think.model.texts(own);
  if (other !== asked) return null;
  return () => show_compare({ found, theirs, ids, head, own, mine, top, names, asked });
}

function show_compare({ found, theirs, ids, head, own, mine, top, names, asked }) {
  $("compared").hidden = false;
  const same = String(theirs) === String(ids) && found.logits.length === think.logits.length;
  const [p, q] = [drawn_from(think.logits, PLAIN), drawn_from(found.logits, PLAIN)];
  const rows = new Map(own.map((id, i) => [mine[i], [p[id], same ? q[id] : null]]));
  top.forEach((id, i) => rows.set(names[i], [same ? p[id] : rows.get(names[i])?.[0] ?? null, q[id]]));
  const kl = p.reduce((sum, x, id) => (x > 0 && same ? sum + x * Math.log(x / Math.max(q[id], 1e-30)) : sum), 0);
  $("compare-words").textContent = (mine[0] === names[0] ? `Both say “${mine[0].trim()}” first. `
    : `“${mine[0].trim()}” here, “${names[0].trim()}” there. `) + (same
    ? `KL(this || the other): ${kl.toFixed(4)} nats.`
    : `They read other tokens: ${count(ids.length, "token")} here, ${theirs.length} there.`);
  const cell = (x) => element("td", {}, ...(x == null ? ["–"] : [percent(x), weight_bar(x)[1]]));
  const bytes = (model) => bytes_in_words(model.shape.weight_bytes);
  $("compare").tBodies[0].replaceChildren(
    ...[["", think.name, asked.name], ["layers", think.layers.length, asked.layers.length],
      ["read for a token", bytes(think.model), bytes(asked.model)],
      ["KV cache", bytes_in_words(think.bytes), bytes_in_words(found.bytes)]]
      .map(([name, ...both]) => element("tr", {}, element("th", { scope: "row" }, name),
        ...both.map((one) => element("td", {}, String(one))))),
    ...[...rows].sort(([, a], [, b]) => Math.max(...b) - Math.max(...a)).map(([name, both]) =>
      element("tr", {}, element("th", { scope: "row" }, token_chip({ id: 0, text: name })), ...both.map(cell))));
  const layer = head.layer.layer, facts = asked.layers[layer];
  const shown = same && facts?.attends && head.head < facts.n_heads;
  $("compare-maps").hidden = !shown;
  if (!shown) return;
  const map = map_of(found.attention, layer, head.head, theirs.length), here = whole_map(head);
  paint_pooled($("compare-here"), head, here, 400);
  paint_pooled($("compare-there"), head, map, 400);
  const most = here.reduce((far, byte, i) => Math.max(far, Math.abs(weight_of(byte) - weight_of(map[i]))), 0);
  $("compare-head").textContent = `${head_name(head)}, here and there: no weight differs by more than ${number(most)}.`;
}

$("other").addEventListener("change", ({ target: { value } }) => change_other(value, async () =>
  (value ? open_other(bytes_of_built_in(value), value) : close_other())));
ask_for_file("choose-other", "other-file", (file) => change_other(file.name, () => open_other(file, file.name)));
for_steps(["compare"], async (ids) => () => show_read(read_compare(ids)));
follow(["head"], () => { if (!running && state.step === "compare") show_read(read_compare(all_ids())); });
