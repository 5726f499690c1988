// Tools, thoughts and what reads them, in node, as JSON for test_web_tools.py.
//   node tools.mjs PLAN.json
import { readFileSync } from "node:fs";
import vm from "node:vm";
import { Template } from "@huggingface/jinja";
import { open } from "../../build/web/heads.mjs";

const plan = JSON.parse(readFileSync(process.argv[2]));
const said = async (run) => {
  try {
    return await run();
  } catch (error) {
    return [error.code ?? error.name, error.message];
  }
};
const out = { ids: [], answers: [], read: [], refused: {} };

for (const { path, messages, options } of plan.conversations) {
  const model = await open(path, { Template });
  out.ids.push(await said(async () => Array.from(await model.conversation(messages, options))));
  model.close();
}
async function answer(path, messages, options) {
  const model = await open(path, { Template }), found = { text: "", reasoning_content: "", tool_calls: [] };
  try {
    for (const told = model.generate(messages, options); ;) {
      const { done, value } = await told.next();
      if (done) return { ...found, stopped: value };
      found.text += value.text;
      found.reasoning_content += value.reasoning_content ?? "";
      found.tool_calls.push(...value.tool_calls ?? []);
    }
  } finally {
    model.close();
  }
}
for (const { path, messages, options } of plan.answers) {
  out.answers.push(await said(() => answer(path, messages, options)));
}
for (const [name, { path, messages, options, without }] of Object.entries(plan.refused)) {
  const model = await open(path, without ? {} : { Template });
  out.refused[name] = await said(() => model.generate(messages, options).next());
  model.close();
}

// What is found in texts, in pieces of several sizes.
const script = readFileSync(new URL("../../browser/web/answers.js", import.meta.url), "utf8");
const { Reader, form_of } = vm.runInThisContext(script + "; ({ Reader, form_of })");
for (const { template, text, tools, thinks } of plan.read) {
  out.read.push([1, 7, 1e6].map((size) => {
    const reader = new Reader(form_of(template), tools, thinks, false), calls = [];
    let told = "", thought = "";
    const take = (part) => {
      told += part.text;
      thought += part.reasoning_content ?? "";
      calls.push(...(part.tool_calls ?? []).map((x) => [x.function.name, x.function.arguments]));
    };
    for (let at = 0; at < text.length; at += size) take(reader.push(text.slice(at, at + size)));
    take(reader.push("", true));
    return [told, thought, calls];
  }));
}
console.log(JSON.stringify(out));
process.exit();
