// What an answer says, thinks and calls: as the server reads it (python/heads/server/reader.py), but
// a call is told when it is whole.

// How templates have calls written, the first that fits. A call is one of `heads`, in a form with
// `between` a name and that, an object, and `close`; another may follow one of `next`; `end` is
// behind the last. White space may be anywhere in these. Without a mark calls begin an answer.
const [CALLS, CALLS_END, CALL, SEP, CALL_END] = ["calls▁begin", "calls▁end", "call▁begin", "sep",
  "call▁end"].map((name) => `<｜tool▁${name}｜>`);
const FORMS = [
  [["<tool_call>", "<function="], { mark: "<tool_call>", heads: ["<tool_call><function="],
    between: [">"], opener: "<parameter=", argument: /\s*<parameter=([^>]+)>\n?/y,
    closer: "</parameter>", close: "</function></tool_call>" }],
  [["<tool_call>"], { mark: "<tool_call>", heads: ["<tool_call>{"], close: "</tool_call>" }],
  [["[TOOL_CALLS]", "[ARGS]"], { mark: "[TOOL_CALLS]", heads: ["[TOOL_CALLS]"],
    between: ["[ARGS]{", "[CALL_ID]"] }],
  [["[TOOL_CALLS]"], { mark: "[TOOL_CALLS]", heads: ["[TOOL_CALLS][{"], next: [",{"], end: "]" }],
  [[CALLS, "```json"], { mark: CALLS, heads: [`${CALLS}${CALL}function${SEP}`],
    next: [`${CALL}function${SEP}`], between: ["```json{"], close: "```" + CALL_END, end: CALLS_END }],
  [[CALLS], { mark: CALLS, heads: [CALLS + CALL], next: [CALL], between: [SEP + "{"],
    close: CALL_END, end: CALLS_END }],
  [["｜DSML｜"], { mark: "<｜DSML｜function_calls>", next: ['<｜DSML｜invokename="'],
    heads: ['<｜DSML｜function_calls><｜DSML｜invokename="'], between: ['">'],
    opener: '<｜DSML｜parametername="', closer: "</｜DSML｜parameter>",
    argument: /\s*<｜DSML｜parameter\s+name="([^"]+)"\s+string="(true|false)">/y,
    close: "</｜DSML｜invoke>", end: "</｜DSML｜function_calls>" }],
  [["<|channel|>", "<|message|>"], { harmony: true }],
  [["ipython", "parameters"], { key: "parameters", heads: ["<|python_tag|>{", "{"], next: [";{"] }],
];

// The form of a template, null: it is none of these.
function form_of(template) {
  if (template.includes("<arg_key>")) return null;
  const [, found] = FORMS.find(([all]) => all.every((text) => template.includes(text))) ?? [];
  if (!found || (found.key && template.includes("<function="))) return null;
  return { key: "arguments", next: [], close: "", end: "", ...found };
}

const is_harmony = (template) => template.includes("<|channel|>") && template.includes("<|message|>");

// What a template is told of thoughts, by the names that templates have for it.
function thinking(template, { no_think, reasoning_effort: effort }) {
  const knows = template.includes("reasoning_effort");
  const told = effort && knows ? { reasoning_effort: effort } : {};
  const thinks = knows || template.includes("</think>") || is_harmony(template);
  if (!no_think && !(effort === "none" && thinks)) return told;
  if (told.reasoning_effort) told.reasoning_effort = /["']none["']/.test(template) ? "none" : "low";
  return { enable_thinking: false, thinking: false, ...told };
}

// Where one of these ends that stands at a place in the text, white space aside. -1: the text may go
// on as one; undefined: it is none.
function begun(text, from, literals) {
  let half;
  for (const literal of literals) {
    let at = from, n = 0;
    for (; n < literal.length; n++, at++) {
      while (/\s/.test(text[at] ?? "")) at++;
      if (text[at] !== literal[n]) break;
    }
    if (n === literal.length) return at;
    if (at === text.length) half = -1;
  }
  return half;
}

// Where the text ends but for what may be the beginning of a mark.
function settled(text, marks) {
  const most = Math.max(0, ...marks.map((mark) => mark.length - 1));
  for (let at = Math.max(0, text.length - most); at < text.length; at++) {
    if (marks.some((mark) => mark.startsWith(text.slice(at)))) return at;
  }
  return text.length;
}

// Where the object ends that begins at a place; -1: not in this text.
function balanced(text, from) {
  const brackets = /\\.|["{}[\]]/gs;
  brackets.lastIndex = from;
  for (let depth = 0, quoted = false, found; (found = brackets.exec(text)); ) {
    const [c] = found;
    if (c === '"') quoted = !quoted;
    else if (!quoted && c.length === 1) depth += c === "{" || c === "[" ? 1 : -1;
    if (depth === 0) return brackets.lastIndex;
  }
  return -1;
}

// The name and the arguments of a call that is an object, whose keys are in any order.
function call_of(object, key) {
  const usual = /^\{\s*"name"\s*:\s*"([\w.-]+)"\s*,\s*"(\w+)"\s*:\s*(?=\{)/.exec(object);
  if (usual?.[2] === key) {
    return [usual[1], object.slice(usual[0].length, balanced(object, usual[0].length))];
  }
  try {
    const outer = JSON.parse(object), found = outer.function?.name ? outer.function : outer;
    const given = found[key] || {}, args = typeof given === "string" ? JSON.parse(given) : given;
    return args?.constructor === Object ? [found.name, JSON.stringify(args)] : [];
  } catch {
    return [];
  }
}

// Whether a string is among what a schema, which nobody has checked, names.
function takes_text(schema) {
  const all = (...names) => names.flatMap((name) => schema?.[name] ?? []);
  return all("enum", "const").some((x) => typeof x === "string") || all("type").includes("string") ||
    all("anyOf", "oneOf").some(takes_text);
}

class Reader {
  text = "";
  told = { said: "", thought: "", calls: [] };

  // thinks: a thought between <think> and </think> may come first; opened: it has begun.
  constructor(form, tools, thinks, opened) {
    Object.assign(this, { form, thinks, opened });
    this.tools = new Map((tools ?? []).map(({ function: { name, parameters } }) => [name, parameters]));
  }

  // What is new with more of the text: { text, reasoning_content, tool_calls }.
  push(text, over = false) {
    this.text += text;
    const { said, thought, calls } = this.told;
    this.told = this.form?.harmony ? this.messages(over) : this.read(over);
    const part = { text: this.told.said.slice(said.length) };
    const thoughts = this.told.thought.slice(thought.length), more = this.told.calls.slice(calls.length);
    if (thoughts) part.reasoning_content = thoughts;
    if (more.length) {
      part.tool_calls = more.map(([name, args]) => ({ type: "function",
        id: Math.random().toString(36).slice(2, 11).padEnd(9, "0"),
        function: { name, arguments: args } }));
    }
    return part;
  }

  read(over) {
    const { text, form } = this, { mark } = form ?? {};
    const found = { said: "", thought: "", calls: [] };
    const begins = this.opened ? 0 : this.thinks ? begun(text, 0, ["<think>"]) : undefined;
    let at = 0, open = form && !mark;  // a call may begin here
    let last;  // how much was said before the last call, or half of one
    if (begins === -1 && !over) return found;
    if (begins >= 0) {
      const end = text.indexOf("</think>", begins);
      const to = end >= 0 ? end : over ? text.length : settled(text, ["</think>"]);
      found.thought = text.slice(begins, to).trim();
      if (end < 0) return found;
      at = end + "</think>".length;
    }
    const called = () => {
      last = found.said.trimEnd().length;
      if (!last) found.said = "";
    };
    while (at < text.length) {
      const to = open ? at : mark ? text.indexOf(mark, at) : -1;
      if (to < 0) {
        found.said += text.slice(at, over ? text.length : settled(text, mark ? [mark] : []));
        break;
      }
      found.said += text.slice(at, to);
      let call = this.call(to, form.heads);
      if (!call || (over && call === -1 && open && text[text.search(/\S/)] === "{")) {
        at = to + (mark ?? "").length;
        found.said += text.slice(to, at);
        open = false;
        continue;
      }
      for (open = false; call && call !== -1; call = this.call(at, form.next)) {
        called();
        found.calls.push(call.slice(1));
        at = this.behind(call[0], form.close, over);
        if (at < 0) return this.finished(found, begins, last, over);
      }
      if (call === -1) {  // half of one is nothing
        called();
        break;
      }
      at = this.behind(at, form.end, over);
      if (at < 0) break;
    }
    return this.finished(found, begins, last, over);
  }
  // White space is said when something follows it, and at the end where no call was last.
  finished({ said, thought, calls }, begins, last, over) {
    if (begins >= 0 || last === 0) said = said.trimStart();
    if (!over || said.trimEnd().length === last) said = said.trimEnd();
    return { said, thought, calls };
  }
  behind(at, literal, over) {  // -1: more of the text will tell
    const end = literal ? begun(this.text, at, [literal]) : at;
    return end === -1 && over ? this.text.length : end ?? at;
  }

  // The call at a place: [where it ends, name, arguments]. -1: more of the text will tell; undefined:
  // there is none.
  call(at, heads) {
    const { text, form } = this;
    let from = begun(text, at, heads), name;
    if (!(from >= 0)) return from;
    if (form.between) {
      const named = /\s*([\w.-]*)(?:\[CALL_ID\]\w*)?/y;
      named.lastIndex = from;
      [, name] = named.exec(text);
      if (named.lastIndex === text.length) {
        return [...this.tools.keys()].some((one) => one.startsWith(name)) ? -1 : undefined;
      }
      if (!this.tools.has(name)) return undefined;
      from = begun(text, named.lastIndex, form.between);
      if (!(from >= 0)) return from;
      if (form.argument) return this.tagged(from, name);
    }
    const end = balanced(text, from - 1);
    if (end < 0) return -1;
    const object = text.slice(from - 1, end), [called, args] = name ? [name, object]
      : call_of(object, form.key);
    return this.tools.has(called) ? [end, called, args] : undefined;
  }
  // The same whose arguments stand between tags.
  tagged(at, name) {
    const { text, form: { opener, argument, closer } } = this, pairs = [];
    const wanted = this.tools.get(name)?.properties;
    for (let begins; (begins = begun(text, at, [opener])) !== undefined; ) {
      argument.lastIndex = at;
      const found = begins >= 0 && argument.exec(text);
      const from = argument.lastIndex, end = found ? text.indexOf(closer, from) : -1;
      if (end < 0) return -1;
      const value = text.slice(from, end).replace(/\n$/, "");
      const is_text = found[2] ? found[2] === "true" : takes_text(wanted?.[found[1]]);
      pairs.push(`${JSON.stringify(found[1])}: ${is_text ? JSON.stringify(value) : as_json(value)}`);
      at = end + closer.length;
    }
    return [at, name, `{${pairs.join(", ")}}`];
  }

  // Messages of gpt-oss, which say in their heads what they are.
  messages(over) {
    const { text } = this, found = { said: "", thought: "", calls: [] }, body = "<|message|>";
    const heads = ["<|start|>assistant", "<|channel|>", "to="];
    const ends = ["<|end|>", "<|call|>", "<|return|>"];
    for (let at = 0; at < text.length; ) {
      const head = begun(text, at, heads), from = text.indexOf(body, at) + body.length;
      const some = from >= body.length;  // of a body
      if (head === undefined || (over && !some && head < 0)) {  // it is not written so
        found.said += at ? text.slice(at).trimStart() : text;
        if (!over) found.said = found.said.trimEnd();
        break;
      }
      if (!some || head < 0) break;
      const said = text.slice(at, from), to = /to=(functions\.)?([\w.-]+)/.exec(said);
      const [end, mark] = ends.map((one) => [text.indexOf(one, from), one])
        .filter(([place]) => place >= 0).sort(([a], [b]) => a - b)[0] ?? [];
      const whole = mark !== undefined || over;
      const told = text.slice(from, mark ? end : over ? text.length : settled(text, ends)).trim();
      if (to?.[1] && this.tools.has(to[2])) {
        if (whole) found.calls.push([to[2], told]);
      } else if (to || /<\|channel\|>\s*analysis/.test(said)) found.thought += told;
      else found.said += told;
      if (!mark) break;
      at = end + mark.length;
    }
    return found;
  }
}

function as_json(text) {
  const plain = { True: "true", False: "false", None: "null" }[text] ?? text;
  try {
    JSON.parse(plain);
    return plain;
  } catch {
    return JSON.stringify(text);  // a string, then
  }
}
