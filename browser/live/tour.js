// The tour: eight steps, each of which sets the page up and points at one part of it (at), where it
// speaks of things, or asks to press them, that stay in view (needs: the first ones, at least).
"use strict";

const STORY = "Once upon a time, there was a";
const TRICK = "The cat saw a red ball. The cat saw a";
const STEPS = [
  { title: "Tokens", at: ".whole", needs: ["tokens", "text"], model: "stories",
    prompt: "One day, a little fox",
    text: "A model reads tokens: words, or pieces of words, each with a number, its id.",
    try: "Type on, and watch the tokens below. What happens to a name, or to a word you made up?" },
  { title: "What comes next", at: ".next", needs: ["bars", "undo"], model: "stories", prompt: STORY,
    text: "All that the model says is this: how likely each token is to come next.",
    try: "Click a bar, even an unlikely one, and see how the story bends. Undo takes it back." },
  { title: "The sampler", at: "#sliders", needs: ["sliders", "bars", "step"], model: "stories",
    prompt: STORY,
    text: "The sampler draws one of them, as with a loaded die. Temperature flattens the odds or " +
      "sharpens them; top-k, top-p and min-p cut the tail.",
    try: "Move temperature to 0, then to 2, and press Next token a few times." },
  { title: "Heads look back", at: ".whole", step: "inside", needs: ["grid", "map-box"], model: "heads",
    prompt: TRICK, role: "previous",
    text: "Another model, with eight heads. For every token a head looks back at the text. This " +
      "one looks at the token just before: a straight line beside the diagonal of its map.",
    try: "Click other heads. Which of them look alike?" },
  { title: "Induction", at: ".head", step: "inside", needs: ["map-box", "readout"], model: "heads",
    prompt: TRICK, role: "induction",
    text: "“ a” has come before. This head looks at what followed it there: “ red”. It is " +
      "called an induction head, and goes on with any pattern that it has seen once.",
    try: "Which colour comes next? Change “red” in the text, or write nonsense of your own, twice." },
  { title: "Switch it off", at: ".next", needs: ["all-on", "bars"], model: "heads",
    prompt: TRICK, role: "induction", off: true,
    text: "All induction heads are off now. The pale bars show what the model said before: " +
      "without them it no longer knows the colour.",
    try: "Switch all on. Then press Which heads matter here, under Change: is it one, or many a little?" },
  { title: "Layer by layer", at: ".lens", step: "inside", needs: ["lens"], model: "stories",
    prompt: "The dog wagged his",
    text: "After each layer one can ask what the model would say if it ended there. The answer " +
      "forms on the way; early layers may prefer another word.",
    try: "From which layer on is the answer first? Pick other tokens of the text." },
  { title: "What it remembers", at: ".cache", step: "inside", needs: ["schemes", "cache", "cache-now"],
    model: "stories", prompt: STORY,
    text: "Each token leaves a key and a value in every layer, so that later ones can look back. " +
      "That is the KV cache. With fewer KV heads it is smaller.",
    try: "Press Write on and watch it fill. How large would MHA be? Then open a model of your own." },
];
let at_step = -1;

function go_to_step(i) {
  at_step = i;
  const step = STEPS[i];
  for (const panel of document.querySelectorAll(".toured")) panel.classList.remove("toured");
  $("tour").hidden = !step;
  document.body.classList.toggle("touring", Boolean(step));
  if (!step) return $("start-tour").focus();
  $("tour-title").textContent = `${i + 1} of ${STEPS.length}: ${step.title}`;
  $("tour-text").textContent = step.text;
  $("tour-try").textContent = step.try;
  $("tour-back").disabled = i === 0;
  $("tour-next").textContent = i + 1 < STEPS.length ? "Next" : "Done";
  $("tour-skip").hidden = i + 1 === STEPS.length;
  const panel = document.querySelector(step.at);
  panel.classList.add("toured");
  return in_turn((newest) => set_up_step(step, panel, () => newest() && at_step === i));
}

// Ends early where another step is wanted by now.
async function set_up_step(step, panel, wanted) {
  if (!wanted()) return undefined;
  if (think.path !== BUILT_IN[step.model]) await open_built_in(step.model);
  remember();
  show({ step: step.step ?? "text" });
  Object.assign(think, { prompt: step.prompt, taken: [], ended: "" });
  set_text(step.prompt);
  await set_off([]);
  if (!wanted()) return undefined;
  const some = heads.filter((head) => head.role === step.role)
    .sort((a, b) => score_of(b, "role") - score_of(a, "role"));
  if (step.role && some.length) show_head_of(some[0]);
  if (step.off) await set_off(some.map(key_of));
  if (!wanted()) return undefined;
  place_tour(panel, step.needs.map($));
  return $("tour-title").focus({ preventScroll: true });
}

// Has what is needed in the middle of the window, and the box in a corner below that covers none of
// it, better not beside the panel; or else as much as there is room for above the box.
function place_tour(panel, needed) {
  const place = (e) => e.getBoundingClientRect(), box = $("tour"), all = () => needed.map(place);
  const top = () => Math.min(...all().map((e) => e.top));
  const bottom = () => Math.max(...all().map((e) => e.bottom));
  scrollBy(0, (top() + bottom() - innerHeight) / 2);
  const on_the_right = (place(panel).left + place(panel).right) / 2 > innerWidth / 2;
  for (const left of [on_the_right, !on_the_right]) {
    box.classList.toggle("on-the-left", left);
    const b = place(box), covers = (e) => e.left < b.right && e.right > b.left && e.bottom > b.top;
    if (bottom() <= innerHeight && !all().some(covers)) return;
  }
  while (needed.length > 1 && bottom() - top() > place(box).top - 16) needed.pop();
  scrollBy(0, bottom() - place(box).top + 8);
}

$("start-tour").addEventListener("click", () => go_to_step(0));
$("tour-back").addEventListener("click", () => go_to_step(at_step - 1));
$("tour-next").addEventListener("click", () => go_to_step(at_step + 1));
$("tour-skip").addEventListener("click", () => go_to_step(STEPS.length));
$("tour").addEventListener("keydown", (event) => {
  const to = { ArrowRight: Math.min(at_step + 1, STEPS.length - 1),
    ArrowLeft: Math.max(at_step - 1, 0), Escape: STEPS.length }[event.key];
  if (to !== undefined) go_to_step(to);
});
