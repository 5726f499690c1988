// The tour: ten steps through the formula, each of which sets the page up and points at one part of it
// (at), where it speaks of things, or asks to press them, that stay in view (needs: the first ones, at
// least).
"use strict";

const STORY = "Once upon a time, there was a";
const TRICK = "The cat saw a red ball. The cat saw a";
const STEPS = [
  { title: "Tokens", at: ".whole", needs: ["tokens", "text"], model: "stories",
    prompt: "One day, a little fox",
    text: "A model reads tokens: words, or pieces of words, each with a number, its id.",
    try: "Type on, and watch the tokens. What happens to a name, or to a word you made up?" },
  { title: "What comes next", at: ".next", needs: ["sliders", "bars"], model: "stories",
    prompt: STORY,
    text: "All that it says is how likely each token is to come next. The sampler draws one, as with " +
      "a loaded die; temperature flattens the odds or sharpens them.",
    try: "Click a bar, even an unlikely one. Then move temperature to 0 or to 2, and press Next token." },
  { title: "The stream", at: ".whole", needs: ["grid"], model: "stories", prompt: "The dog wagged his",
    text: "From left to right: each token begins as its embedding. Heads and networks read the stream " +
      "and add to it; what comes together becomes the answer. Thick bands add most.",
    try: "Pick another token. A click on a “net” shows what each layer would say." },
  { title: "A head looks back", at: ".head", step: "inside", needs: ["map-box", "readout"],
    model: "heads", prompt: TRICK, role: "previous",
    text: "Another model, with eight heads. For every token a head looks back at the text. This one " +
      "looks at the token just before: a straight line beside the diagonal of its map.",
    try: "Click other heads in the picture. Which of them look alike?" },
  { title: "Project: query and key", at: ".computes", step: "inside", part: 1,
    needs: ["part-words", "computes-box"], model: "heads", prompt: TRICK, role: "induction",
    text: "How does it know where to look? From the stream of each token matrices make a query, what " +
      "it looks for, and a key, what it offers; each head has its own split of them.",
    try: "Touch the strips. Which key is most like the query?" },
  { title: "Score, scale, mask, softmax", at: ".computes", step: "inside", part: 4,
    needs: ["part-words", "computes-box"], model: "heads", prompt: TRICK, role: "induction",
    text: "Query times key is a score, scaled so that it does not grow with their length. The mask " +
      "hides what comes later. Softmax makes weights of the scores that add up to 1.",
    try: "Switch Rope off: what would it read, did it not know how far away tokens are?" },
  { title: "Mix, concatenate, W_o", at: ".computes", step: "inside", part: 7,
    needs: ["part-words", "computes-box"], model: "heads", prompt: TRICK, role: "induction",
    text: "The weights mix the values, what each token hands over. All heads' mixes, one behind the " +
      "other, go through the output matrix W_o: so each head adds its own part to the stream.",
    try: "Find this head's band in the picture. Then press Step by step for another head." },
  { title: "Induction, switched off", at: ".next", needs: ["all-on", "bars"], model: "heads",
    prompt: TRICK, role: "induction", off: true,
    text: "“ a” has come before: induction heads look at what followed it there, “ red”. All of them " +
      "are off now. The pale bars show what the model said before: it no longer knows the colour.",
    try: "Switch all on. Then press Which heads matter here, under Change: is it one, or many a little?" },
  { title: "Two texts", at: ".patch", step: "change", needs: ["patch-map-box", "patch-words"],
    model: "heads", prompt: TRICK, patch: TRICK.replace("red", "blue"),
    text: "The same text with another colour. In each run one head, at one token, gives what it gave " +
      "in the first text. Where the first answer comes back, that head carries the colour.",
    try: "Click the strong cells. Who writes the colour down, and who fetches it?" },
  { title: "What it remembers", at: ".cache", step: "inside", needs: ["schemes", "cache", "cache-now"],
    model: "stories", prompt: STORY,
    text: "Each token leaves a key and a value in every layer, so that later ones can look back. " +
      "That is the KV cache. With fewer KV heads it is smaller.",
    try: "How large would MHA be? Take some tokens and see it fill. Then open a model of your own." },
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
  if (step.patch) {
    corrupted_box.value = step.patch;
    await run_patch();
  }
  await asked_last.parts?.answer;  // what is above may still grow
  await new Promise((next) => { setTimeout(next); });
  go_to_part(step.part ?? PARTS.length - 1);
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
