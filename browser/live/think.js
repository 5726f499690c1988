// The text, the model and the pass after every change: what is missing runs in the worker, and the
// views follow. A newer text does not wait for an older one.
"use strict";

const MOST_TOKENS = 512;  // of a text: maps grow with its square

const think = {
  model: null, source: null, side: null,  // source: its bytes, or its file
  name: "", path: "", layers: [],  // path: for the command line
  prompt: "", ids: [],   // what was typed, and its tokens
  taken: [],             // ids after it
  off: new Set(),        // heads, as "layer.head"
  steers: [],            // { layer, vector, scale }, one or none
  seed: 1, sampling: { temperature: 0.8, top_k: 0, top_p: 0.95, min_p: 0 },
  logits: null,          // after the last token
  before: null,          // the same with nothing changed, while something is
  hash: "", bytes: 0, ended: "",  // ended: why no token follows
};
const PIECE = 64;        // tokens that run while a newer text waits
const text_box = $("text");
const off_list = () => [...think.off].join(",");
const all_ids = () => [...think.ids, ...think.taken];
const after_pass = [];   // functions that ask for more, each of which gives one that shows it

// What is asked for while one of the steps is open, and when it opens.
function for_steps(steps, prepare) {
  const open = () => steps.includes(state.step);
  after_pass.push(async (ids) => open() && prepare(ids));
  follow(["step"], () => { if (open() && think.model && !running) show_read(prepare(all_ids())); });
}

// What a small model shows with the text, all at once, and a large one when it is there.
const SMALL = 2e7;  // bytes of weights
const meanwhile = (prepare) => async (ids, reading = prepare(ids).catch(fail)) =>
  (think.model.shape.weight_bytes < SMALL ? reading : () => show_read(reading));

const show_read = (reading) => reading.then((show_it) => show_it?.()).catch(fail);

function ask_for_file(button, input, open) {
  $(button).addEventListener("click", () => $(input).click());
  $(input).addEventListener("change", ({ target }) => {
    if (target.files.length) open(target.files[0]);
    target.value = "";
  });
}

function complain(sentence) {
  $("notice").textContent = sentence;
  $("notice").hidden = !sentence;
}

// What another model has interrupted is no failure.
function fail(error) {
  if (error.code !== "closed") complain(error.message);
}

// ---- what sets the page up ----

// Links, models and steps of the tour set the page up one after another, however long a model takes
// to open. Each is told by newest() whether none waits behind it.
let turn = Promise.resolve(), last_in_turn = null;
function in_turn(set_up) {
  const own = last_in_turn = {};
  stop_writing();
  turn = turn.then(() => set_up(() => last_in_turn === own)).catch(fail);
  return turn;
}

const open_engine = (source) =>
  globalThis.heads.open(source, { most: MOST_TOKENS, kind: $("looking").textContent });

// The model once more, in a worker that may compute for long while a text goes on.
async function beside() {
  const { source } = think;
  if (think.side?.source !== source) {
    think.side?.model.then((model) => model.close(), () => {});
    think.side = { source, model: open_engine(source) };
  }
  return think.side.model;
}

// Of several questions of a kind only the newest is put; those that it overtakes have no answer.
const asked_last = {};
async function newest_of(kind, ask) {
  const own = { before: asked_last[kind]?.answer };
  asked_last[kind] = own;
  own.answer = (async () => {
    await own.before?.catch(() => {});
    return asked_last[kind] === own ? ask(await beside()) : undefined;
  })();
  return own.answer;
}

// Keeps what is typed meanwhile.
async function open_model(source, name, path) {
  const model = await open_engine(source);
  let layers, sequences;
  try {
    if (model.shape.encoder || model.shape.source_vocab) {
      throw new Error("it is an encoder, or has one, and this page needs a model that goes on");
    }
    layers = await model.layers();
    sequences = { with: await model.sequence(), lens: await model.sequence(),
      whole: await model.sequence(), off: "", steers: [] };
    sequences.steers = think.steers = [];
    await model.tokenize("a");
  } catch (error) {
    await model.close();
    throw error;
  }
  stop_writing();
  while (running) await running;
  think.model?.close();
  Object.assign(think, { model, source, layers, sequences, name, path, ids: [], taken: [], ended: "",
    logits: null, tokenized: null, hashed: null, last_shown: 0, answer: null, against: null });
  think.off.clear();
  past.length = 0;
  if (model.shape.greedy) think.sampling.temperature = 0;
  use_data(empty_data(name, layers));
  Object.assign(state, { head: null, row: 0, column: 0, source: "head", shown: "role" });
  begin_views();
  show_model();
}

// ---- a pass ----

let running = null, stale = false;

// Runs until the views show what was last asked for.
function update() {
  stale = true;
  running ??= (async () => {
    const late = setTimeout(() => document.body.classList.add("busy"), 300);
    try {
      while (stale) {
        stale = false;
        await pass();
      }
    } catch (error) {
      fail(error);
    }
    clearTimeout(late);
    document.body.classList.remove("busy");
    running = null;
  })();
  return running;
}

async function hex_of_hash(floats) {
  const sum = await crypto.subtle.digest("SHA-256", floats);
  return Array.from(new Uint8Array(sum), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Sequences keep their list of heads and their vectors, so others are for empty ones.
async function switch_sequences() {
  const { model, sequences, steers } = think, off = off_list();
  if (sequences.off === off && sequences.steers === steers) return;
  for (const name of ["with", "lens"]) await model.change(sequences[name], off, steers);
  Object.assign(sequences, { off, steers });
  think.hashed = null;
  cut_data(0);
}

// Runs ids from `from` on, in pieces that end where the prompt does; false: a newer text waits.
async function run_missing(ids, from) {
  const { model, sequences } = think, n = think.ids.length;
  for (let at = from, end; at < ids.length; at = end) {
    end = Math.min(at + PIECE, at < n ? n : ids.length);
    const found = await model.look(sequences.with, ids.slice(0, end), at, { attention: true });
    const texts = await model.texts(ids.slice(at, end));
    if (think.model !== model) return false;
    add_rows(texts.map((text, i) => ({ id: ids[at + i], text })), found.attention);
    if (end === n) [think.hash, think.hashed] = [await hex_of_hash(found.logits), `${think.ids}`];
    if (stale) return false;
    Object.assign(think, { logits: found.logits, bytes: found.bytes });
  }
  return true;
}

async function pass() {
  const { model, sequences } = think;
  if (!model) return;
  if (think.tokenized !== think.prompt) {
    const prompt = think.prompt, ids = await model.tokenize(prompt);
    if (think.prompt !== prompt || think.model !== model) return;
    Object.assign(think, { ids: Array.from(ids), tokenized: prompt });
  }
  const room = Math.min(MOST_TOKENS, model.shape.context), too_many = all_ids().length - room;
  if (too_many > 0) think.ids.length = Math.min(think.ids.length, room);
  think.taken.length = Math.min(think.taken.length, room - think.ids.length);
  think.full = too_many >= 0;
  if (too_many > 0) complain(`This page shows ${room} tokens of a text; ${too_many} are left out.`);
  await switch_sequences();
  const ids = all_ids();
  let from = 0;
  while (from < ids.length - 1 && data.tokens[from]?.id === ids[from]) from++;
  if (think.hashed !== String(think.ids)) from = Math.min(from, think.ids.length - 1);
  cut_data(Math.max(0, from));
  if (ids.length && !await run_missing(ids, from)) return;
  if (!ids.length) Object.assign(think, { logits: null, hash: "", bytes: 0 });
  think.before = (think.off.size || think.steers.length) && ids.length
    ? (await model.look(sequences.whole, ids, ids.length, {})).logits : null;
  const text = think.taken.length ? await model.decode(ids) : think.prompt;
  const views = await Promise.all(after_pass.map((prepare) => prepare(ids)));
  if (stale || think.model !== model) return;
  if (text_box.value !== text) set_text(text);
  show_text();
  for (const view of views) if (view) view();
}

// The textarea's own text is what scripts read of an element.
function set_text(text) {
  text_box.defaultValue = text;
  text_box.value = text;
  requestAnimationFrame(() => { text_box.scrollTop = text_box.scrollHeight; });
}

// The last token's, unless another was picked.
const row_after_pass = (last = data.tokens.length - 1) =>
  (state.row >= think.last_shown || state.row > last ? last : state.row);

// The views of the head page, with the rows that have come.
function show_text() {
  forget_costs();
  count_scores();
  use_data(data);
  if (!$("meanings").firstChild) build_meanings();
  last_map = painted = null;
  const last = data.tokens.length - 1;
  document.body.classList.toggle("no-heads", !heads.length || last < 0);
  follow_tokens(data.tokens);
  if (last < 0 || !heads.length) {
    state.row = Math.max(0, last);
    return;
  }
  if (!state.head) [state.head, state.row] = [first_head(), last];
  state.row = row_after_pass();
  think.last_shown = last;
  state.column = most_read();
  fill_grid();
  for (const cell of cell_of.values()) if (cell.querySelector("canvas")) draw_thumbnail(cell);
  for (const view of views) view(new Set(["head", "row", "column"]));
}

// What the head on show reads most from, in the row on show.
function most_read() {
  const row = map_row(state.head, state.row);
  return row.indexOf(row.reduce((a, b) => Math.max(a, b), 0));
}

follow(["head"], () => { if (!running) show({ column: most_read() }); });

// ---- what changes the text ----

const past = [];  // {prompt, taken}: what undo goes back to
let typed_at = 0;

function remember() {
  past.push({ prompt: think.prompt, taken: [...think.taken] });
  typed_at = 0;
}

function type_text(prompt) {
  if (performance.now() - typed_at > 1000) remember();
  typed_at = performance.now();
  Object.assign(think, { prompt, taken: [], ended: "" });
  complain("");
  return update();
}

function take_token(id) {
  if (think.full) return undefined;
  remember();
  think.taken.push(id);
  think.ended = "";
  return update();
}

function undo() {
  const before = past.pop();
  if (!before) return undefined;
  typed_at = 0;
  stop_writing();
  Object.assign(think, before, { ended: "" });
  complain("");
  set_text(think.taken.length ? text_box.value : think.prompt);
  return update();
}

// The sampler's token; false: none follows.
async function step() {
  await running;
  const { model, logits, taken, sampling, seed } = think;
  if (!logits || think.full) return false;
  const { id, ends } = await model.draw({ ...sampling, seed }, taken.length, logits);
  if (think.logits !== logits) return true;  // the text is another by now
  if (ends) {
    think.ended = "The sampler took the end of the text.";
    draw_bars();
    say(think.ended);
    return false;
  }
  await take_token(id);
  return true;
}

let writing = null;
function stop_writing() {
  writing = null;
  $("run").textContent = "Write on";
}

// Takes n tokens, or fewer where the text ends or somebody stops it.
async function write(n) {
  const own = writing = {};
  $("run").textContent = "Stop";
  for (let i = 0; i < n && writing === own; i++) if (!await step()) break;
  if (writing === own) stop_writing();
}

let steps = Promise.resolve();
const step_soon = () => { steps = steps.then(step).catch(fail); };

text_box.addEventListener("input", () => {
  stop_writing();
  text_box.defaultValue = text_box.value;
  type_text(text_box.value);
});
text_box.addEventListener("keydown", (event) => {
  const control = event.ctrlKey || event.metaKey;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) step_soon();
  else if (event.key.toLowerCase() === "z" && control && !event.shiftKey) undo();
  else return;
  event.preventDefault();
});
$("step").addEventListener("click", step_soon);
$("undo").addEventListener("click", undo);
$("run").addEventListener("click", () => (writing ? stop_writing() : write(MOST_TOKENS).catch(fail)));
