// Steering: what one list of texts has more of than another, added to the stream after a layer.
"use strict";

const lists = () => ["toward", "away"].map((name) =>
  $(name).value.split("\n").map((line) => line.trim()).filter(Boolean));
const N_WRITTEN = 16;
let direction = null;  // of these lists, after this layer

async function steer() {
  const [toward, away] = lists(), layer = Number($("steer-layer").value);
  const scale = Number($("steer-by").value), { model } = think;
  $("steer-layer-now").textContent = layer;
  $("steer-by-now").textContent = scale ? signed(scale) : "off";
  $("steer-note").textContent = toward.length && away.length ? ""
    : "Each list needs a text, a line each; pairs that differ in one thing are best.";
  if (scale && toward.length && away.length) {
    const key = JSON.stringify([toward, away, layer]);
    if (direction?.key !== key || direction.model !== model) {
      direction = { key, model, vector: await (await beside()).direction(toward, away, layer) };
    }
    if (think.model !== model) return undefined;
    think.steers = [{ layer, vector: direction.vector, scale }];
  } else if (think.steers.length) think.steers = [];
  else return undefined;
  stop_writing();
  return update();
}

// A slider moves faster than a pass: the newest place counts.
let steering = null;
function steer_soon() {
  steering ??= Promise.resolve().then(() => { steering = null; }).then(steer).catch(fail);
  return steering;
}

function show_steer() {
  const last = Math.max(0, data.layers.length - 2);
  $("steer-layer").max = last;
  if (!$("steer-layer").dataset.set) $("steer-layer").value = Math.floor(data.layers.length / 2);
  $("steer-layer-now").textContent = $("steer-layer").value;
}

// What follows greedily, as it is and steered.
async function write_steered() {
  const ids = all_ids(), side = await beside(), texts = [];
  for (const steers of think.steers.length ? [[], think.steers] : [[]]) {
    const written = [...ids];
    for (let i = 0; i < N_WRITTEN && written.length < MOST_TOKENS; i++) {
      written.push(largest(await side.after(written, off_list(), steers), 1)[0]);
    }
    texts.push((await side.decode(written)).slice((await side.decode(ids)).length));
  }
  $("steered").replaceChildren(...texts.flatMap((text, i) => [
    element("dt", {}, i ? "steered" : "as it is"), element("dd", {}, text)]));
}

for (const name of ["toward", "away", "steer-layer", "steer-by"]) {
  $(name).addEventListener("input", () => {
    $("steer-layer").dataset.set = "1";
    $("steered").replaceChildren();
    steer_soon();
  });
}
$("steer-write").addEventListener("click", () => write_steered().catch(fail));
