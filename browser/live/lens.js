// What each layer would say after the chosen token.
"use strict";

// Marks a layer's row, and goes there.
let chosen_layer = -1;
function mark_layer() {
  [...$("lens").tBodies[0].rows].forEach((row, l) =>
    row.classList.toggle("chosen", l === chosen_layer));
}

function show_layer(layer) {
  chosen_layer = layer;
  mark_layer();
  $("lens-title").scrollIntoView({ block: "center" });
}

const GUESSES = 4;

let lens_of = null;
async function read_lens(row) {
  const { model, sequences } = think, asked = lens_of = {};
  const ids = data.tokens.slice(0, row + 1).map((token) => token.id);
  if (!ids.length) return () => $("lens").tBodies[0].replaceChildren();
  const said = await model.say(sequences.lens, ids, GUESSES);
  const tokens = await texts_of(said.flatMap(({ likeliest }) => likeliest.map(({ id }) => id)));
  return () => {
    if (asked !== lens_of || think.model !== model) return;
    $("lens-note").replaceChildren(token_chip(data.tokens[row]), element("small", {}, " " + row));
    $("lens").tBodies[0].replaceChildren(...said.map(({ layer, likeliest, rank }) =>
      element("tr", { class: rank === 1 ? "agrees" : "" }, element("th", { scope: "row" }, String(layer)),
        element("td", {}, ...likeliest.map((one) => guess(tokens.shift(), one.probability))),
        element("td", {}, rank === 1 ? "first" : String(rank)))));
    mark_layer();
  };
}

function guess(token, probability) {
  const made = element("span", { class: "guess" }, token_chip(token), " ",
    element("small", {}, percent(probability)));
  made.style.setProperty("--chance", probability);
  return made;
}

follow(["row"], () => {
  if (!running && state.step === "inside") show_read(read_lens(state.row));
});
for_steps(["inside"], meanwhile(() => read_lens(row_after_pass())));
