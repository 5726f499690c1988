// Conversations that only the checkpoint's own template can write, by a library for Jinja that the page
// gives: as the server writes them (python/heads/server/rendering.py).

// What templates want differs: a call's arguments as an object or as JSON, beside calls an empty
// content or none, and thoughts beside a content and calls or not.
function* forms_of(messages) {
  for (const thoughts of [true, false]) for (const none of ["", null]) for (const json of [false, true]) {
    yield messages.map((message) => {
      if (!message.tool_calls) return message;
      const { reasoning_content, ...made } = { ...message, content: message.content || none };
      made.tool_calls = message.tool_calls.map((call) => ({ ...call, function: { ...call.function,
        arguments: json ? spaced(call.function.arguments) : call.function.arguments } }));
      return thoughts || !message.content ? { ...made, reasoning_content } : made;
    });
  }
}

// JSON as Python has it.
const spaced = (value) => JSON.stringify(value, null, 1).replace(/,\n */g, ", ").replace(/\n */g, "");

function in_order(names, text) {
  let at = 0;
  return names.every((name) => (at = text.indexOf(name, at) + name.length) >= name.length);
}

// Its text, in the first form that the template takes, and of which it writes all calls.
function written(template, messages, told) {
  const render = (some) => template.render({ documents: null, tools: null, ...told,
    add_generation_prompt: true, messages: some.map(({ reasoning_content: thoughts, ...message }) =>
      (thoughts ? { ...message, reasoning_content: thoughts, thinking: thoughts } : message)) });
  const renamed = (some, n = 0) => some.map((message) => (message.tool_calls ? { ...message,
    tool_calls: message.tool_calls.map((call) => ({ ...call, function: { ...call.function,
      name: `call_${n++}_` } })) } : message));
  const calls = messages.flatMap((message) => message.tool_calls ?? []);
  let first, refusal;
  for (const form of calls.length ? forms_of(messages) : [messages]) {
    try {
      const text = render(form), names = calls.map((call, i) => `call_${i}_`);
      if (text.includes("[object Map]")) continue;  // where Python cannot add an object to a text
      if (in_order(names, calls.length ? render(renamed(form)) : "")) return text;
      first ??= text;
    } catch (error) {
      refusal ??= error;
    }
  }
  if (first !== undefined) return first;
  throw new HeadsError("refused", `the chat template refuses this: ${refusal?.message}`);
}

// Writes messages where the worker says that the library's form of the template cannot.
class Templates {
  constructor(call, Template) {
    Object.assign(this, { call, Template });
  }
  async write(name, messages, options, more) {
    const order = await this.call("unwritten", [name, messages, options], more);
    if (!order) return undefined;
    const { why, template, messages: said, told } = order;
    if (!this.Template) {
      throw new HeadsError("unsupported", `${why}: the checkpoint's template writes this, in Jinja: ` +
        "npm i @huggingface/jinja, and give open() its { Template }");
    }
    this.made ??= this.made_of(template, told);
    const made = await this.made, text = written(made, said, told);
    if (told.tools && written(made, said, { ...told, tools: null }) === text) {
      throw new HeadsError("refused", "tools: this model's chat template has no place for them");
    }
    return text;
  }
  async made_of(template, { bos_token, eos_token }) {
    const sample = [{ role: "user", content: "a" }];
    try {
      const made = new this.Template(template);
      await this.call("same", [sample, written(made, sample, { bos_token, eos_token })]);
      return made;
    } catch (error) {
      if (error instanceof HeadsError) throw error;
      throw new HeadsError("refused", `the chat template cannot be read: ${error.message}`);
    }
  }
}
