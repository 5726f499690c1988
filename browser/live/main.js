// The models that are in the page, those that are dropped on it, and the beginning.
"use strict";

const BUILT_IN = { __proto__: null, stories: "models/stories.bin", heads: "models/heads.bin" };

function show_model() {
  $("models").querySelector(".dropped")?.remove();
  const built_in = Object.keys(BUILT_IN).find((name) => BUILT_IN[name] === think.path);
  if (!built_in) $("models").append(element("option", { value: "", class: "dropped" }, think.name));
  $("models").value = built_in ?? "";
  by_id.clear();
  $("shape").textContent = shape_in_words().replace(/ · [^·]*$/, "") +
    ` · ${think.model.shape.vocab_size.toLocaleString("en")} tokens to choose from`;
  show_sliders();
  show_steer();
}

const bytes_of_built_in = (name) =>
  Uint8Array.from(atob($(name + "-bin").textContent.trim()), (c) => c.charCodeAt(0));
const open_built_in = (name) => open_model(bytes_of_built_in(name), name + ".bin", BUILT_IN[name]);

// Another model goes on with what was typed.
const change_model = (name, open) => in_turn(async () => {
  complain("");
  try {
    await open();
  } catch (error) {
    return complain(`${name}: ${error.message}`);
  }
  set_text(think.prompt);
  show_switches();
  return update();
});

const open_file = (file) => (file.name.endsWith(".json") ? open_experiment(file)
  : change_model(file.name, () => open_model(file, file.name, file.name)));
$("models").addEventListener("change", ({ target: { value } }) =>
  change_model(value, () => open_built_in(value)));
ask_for_file("choose", "file", open_file);
const has_files = ({ dataTransfer }) => dataTransfer.types.includes("Files");  // not a piece of text
addEventListener("dragover", (event) => { if (has_files(event)) event.preventDefault(); });
addEventListener("drop", (event) => {
  if (!has_files(event)) return;
  event.preventDefault();
  const { items, files: [file] } = event.dataTransfer;
  if (items[0]?.webkitGetAsEntry()?.isDirectory) {
    complain(`${file.name} is a directory; name a file (export.py makes one of a checkpoint)`);
  } else if (file) open_file(file);
});

follow_link();
