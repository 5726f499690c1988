// A Chrome extension: copy the package's heads.mjs and heads-worker.js, and models/stories.bin, beside
// this file. Its pages may not run workers from blob:, so the worker is a file.
import { open } from "./heads.mjs";

const story = document.querySelector("#story");
try {
  const model = await open("stories.bin", { workerURL: "heads-worker.js", cache: false });
  const options = { temperature: 0.8, top_p: 0.95, seed: 7, max_tokens: 40 };
  for await (const { text } of model.generate(story.textContent, options)) story.append(text);
} catch (error) {
  story.textContent = error.message;
}
document.body.dataset.done = "1";
