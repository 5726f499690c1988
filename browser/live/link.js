// A state as a link: #m=MODEL&p=PROMPT&t=IDS after it&s=SEED&off=HEADS and the sampler's options;
// n=N takes N tokens more; step=STEP, head=L.H and row=I are what is open, answer=ID and against=ID
// what the picture explains; c=TEXT the corrupted text;
// by=TIMES&after=LAYER&more=TEXTS&less=TEXTS steers; other=MODEL stands beside it.
"use strict";

const FIRST = "p=Once upon a time, there was a";  // of a page without a link
const NUMBERS = { temp: "temperature", top_k: "top_k", top_p: "top_p", min_p: "min_p" };

function link_hash() {
  const link = new URLSearchParams({ m: think.path.includes("/") ? think.name.replace(/\.bin$/, "")
    : think.name, p: think.prompt });
  if (think.taken.length) link.set("t", think.taken.join());
  link.set("s", think.seed);
  for (const [name, option] of Object.entries(NUMBERS)) link.set(name, think.sampling[option]);
  if (think.off.size) link.set("off", off_list());
  for (const name of ["answer", "against"]) if (think[name] !== null) link.set(name, think[name]);
  if (corrupted_box.value) link.set("c", corrupted_box.value);
  if (other) link.set("other", other.name);
  if (think.steers.length) {
    const [more, less] = lists();
    for (const [key, value] of Object.entries({ by: $("steer-by").value, after: $("steer-layer").value,
      more: more.join("\n"), less: less.join("\n") })) link.set(key, value);
  }
  if (state.step !== "text") link.set("step", state.step);
  if (state.head) link.set("head", key_of(state.head));
  if (state.row < data.tokens.length - 1) link.set("row", state.row);
  return "#" + link;
}

// The heads of "1.2,3.*". What is no head is the engine's to refuse.
function heads_of_list(list) {
  return list.split(",").filter(Boolean).flatMap((name) => {
    const layer = name.endsWith(".*") && data.layers.find((l) => name === l.layer + ".*");
    return layer?.heads ? layer.heads.map(key_of) : [name.trim()];
  });
}

const ids_of = (list) => list.split(",").filter(Boolean).map(Number);

// A number of the link, or a list; what is none is said, and nothing comes of it.
function number_of(link, key, otherwise, is_one = Number.isFinite, read = Number) {
  const value = link.has(key) ? read(link.get(key)) : otherwise;
  if (is_one(value)) return value;
  complain(`The link says ${key}=${link.get(key)}, which is no such number.`);
  return otherwise;
}

const follow_link = () => in_turn(follow_hash);

async function follow_hash(newest) {
  delete document.body.dataset.done;
  complain("");
  const link = new URLSearchParams(location.hash.slice(1) || FIRST);
  const name = link.get("m") ?? "stories";
  try {
    if (BUILT_IN[name] || !think.model) await open_built_in(BUILT_IN[name] ? name : "stories");
    if (!BUILT_IN[name] && name !== think.name) {
      complain(`This link is of ${name}: open that checkpoint here, then the link again.`);
    }
    for (const [key, option] of Object.entries(NUMBERS)) {
      const [, , from, to] = SLIDERS.find(([name]) => name === option);
      think.sampling[option] = number_of(link, key, think.sampling[option],
        (value) => value >= from && value <= to);
    }
    think.seed = number_of(link, "s", 1, (seed) => Number.isSafeInteger(seed) && seed >= 0);
    show_sliders();
    const is_token = (id) => id === null || (Number.isSafeInteger(id) && id >= 0 &&
      id < think.model.shape.vocab_size);
    for (const key of ["answer", "against"]) think[key] = number_of(link, key, null, is_token);
    corrupted_box.value = link.get("c") ?? "";
    show({ step: STEPS_DOWN.includes(link.get("step")) ? link.get("step") : "text" });
    Object.assign(think, { prompt: link.get("p") ?? "", ended: "",
      taken: number_of(link, "t", [], (ids) => ids.every(Number.isSafeInteger), ids_of) });
    set_text(think.prompt);
    await set_off(heads_of_list(link.get("off") ?? ""));
    await follow_steer(link);
    await follow_other(link.get("other") ?? "");
    if (link.has("n") && newest()) await write(number_of(link, "n", 0));
    show_linked(link);
  } catch (error) {
    fail(error);
  }
  $("start-tour").disabled = false;
  document.body.dataset.done = "1";
}

async function follow_steer(link) {
  const by = number_of(link, "by", 0, (x) => Math.abs(x) <= 4);
  const after = number_of(link, "after", null, (x) => x === null ||
    (Number.isInteger(x) && x >= 0 && x <= Number($("steer-layer").max)));
  $("steer-by").value = by;
  if (after !== null) [$("steer-layer").value, $("steer-layer").dataset.set] = [after, "1"];
  for (const [id, key] of [["toward", "more"], ["away", "less"]]) {
    if (link.has(key)) $(id).value = link.get(key);
  }
  await steer();
}

async function follow_other(name) {
  if (!BUILT_IN[name]) close_other();
  else if (other?.name !== name) await open_other(bytes_of_built_in(name), name);
  if (name && !other) complain(`This link compares with ${name}: open that beside this model.`);
  $("other").value = other?.name ?? "";
  if (other) show_read(read_compare(all_ids()));
}

function show_linked(link) {
  const head = heads.find((one) => key_of(one) === link.get("head")) ?? first_head();
  if (head && data.tokens.length) show_head_of(head);
  const row = Number(link.get("row") ?? NaN);
  if (row >= 0 && row < data.tokens.length && heads.length) show({ row, column: 0 });
}

// What a shell reads as these characters.
const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

// The commands that give what the open step shows.
function commands() {
  const off = think.off.size ? " --off " + off_list() : "", last = data.tokens.length - 1;
  const run = `./run ${think.path} ` + (think.taken.length ? `--tokens '${all_ids().join(" ")}'`
    : "-p " + quoted(think.prompt)) + off;
  const found = [];
  if (!think.hash) return found;
  if (state.step === "inside" && state.head) {
    found.push(`${run} --parts ${key_of(state.head)}${state.row < last ? ":" + state.row : ""}`,
      `${run} --heads heads.html`, `${run} --lens lens.json`);
  } else if (state.step === "change") {
    if (way && !way.refused) {
      found.push(`${run} --attribute ${way.answer}${way.against >= 0 ? "," + way.against : ""}`);
    }
    if (patch?.results) {
      found.push(`${run} --patch ${quoted(corrupted_box.value)} --answer ${patch.answer},${patch.against}`);
    }
    if (think.steers.length) found.push(steer_in_python());
  }
  return found;
}

function steer_in_python() {
  const [{ layer, scale }] = think.steers, [more, less] = lists().map((one) => JSON.stringify(one));
  return "python3 -c " + quoted(`import heads
m = heads.Model(${JSON.stringify(think.path)})
v = m.direction(${more}, ${less}, layer=${layer})
print(m.probs(${JSON.stringify(think.prompt)}, 5, steer=${scale} * v)[-1])`);
}

function show_command() {
  $("hash").textContent = think.hash;
  const off = think.off.size ? " --off " + off_list() : "";
  $("command").textContent = !think.hash ? ""
    : `./run ${think.path} -p ${quoted(think.prompt)}${off} --logits logits.f32 && ` +
      `tail -c ${4 * think.logits.length} logits.f32 | sha256sum`;
  $("commands").replaceChildren(...commands().map((command) => element("div", { class: "command" },
    element("code", {}, command), element("button", { type: "button",
      onclick: () => copy_text(command, "the command") }, "Copy"))));
}

follow(["head", "row", "step"], () => { if (!running && think.logits) show_command(); });
after_pass.push(async () => show_command);
$("copy-command").addEventListener("click", () =>
  copy_text($("command").textContent, "the command"));
$("copy-link").addEventListener("click", () => {
  history.replaceState(null, "", link_hash());
  copy_text(location.href, "a link to this state");
});
addEventListener("hashchange", follow_link);
