// What callers give, in the worker: each function returns its argument in the form that the engine
// takes, or throws a sentence that names it, the module's (python/heads/_arguments.py).

const MAX_INT = 2 ** 31 - 1;
const KV_TYPES = ["f16", "f32", "q8", "q4"];

function repr(value) {
  let said = String(value);
  try {
    said = (typeof value === "bigint" ? said : JSON.stringify(value, (_, part) =>
      (ArrayBuffer.isView(part) ? Array.from(part) : Number.isNaN(part) ? "NaN" : part))) ?? said;
  } catch { /* a circle */ }
  return said.length > 60 ? said.slice(0, 57) + "..." : said;
}

function refusal(name, expected, found) {
  return new HeadsError("argument", `${name}: expected ${expected}, found ${repr(found)}`);
}

const as_python = (x) => (x === 1e-6 ? "1e-06" : x);

function whole(name, value, low = 0, high = MAX_INT) {
  if (Number.isSafeInteger(value) && value >= low && value <= high) return value;
  if (typeof value === "bigint" && value >= low && value <= high) return value;
  throw refusal(name, `a whole number from ${low} to ${high}`, value);
}
function number(name, value, low, high) {
  if (typeof value === "number" && value >= low && value <= high) return value;
  throw refusal(name, `a number from ${as_python(low)} to ${high}`, value);
}
function flag(name, value) {
  if (typeof value === "boolean" || value === 0 || value === 1) return value;
  throw refusal(name, "true or false", value);
}
function plain(name, value) {
  if (typeof value !== "string") throw refusal(name, "a text", value);
  if (!/\p{Cs}/u.test(value)) return value;
  throw refusal(name, "a text without halves of surrogate pairs", value);
}
function c_string(name, value) {  // that C reads up to its first zero byte
  if (!plain(name, value).includes("\0")) return value;
  throw refusal(name, "a text without zero bytes", value);
}
function items(name, value, expected) {
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return Array.from(value);
  throw refusal(name, expected, value);
}
const texts = (name, value) => items(name, value, "a list of texts").map((one) => plain(name, one));

function id_list(name, value) {
  const ids = items(name, value, "a text or a list of ids");
  if (!ids.every(Number.isInteger)) throw refusal(name, "a text or a list of ids", value);
  const other = ids.find((id) => id < 0 || id > MAX_INT);
  if (other === undefined) return ids;
  throw new HeadsError("argument", `${name}: ${other} is no token of a model`);
}

function stops(value) {
  const several = typeof value === "string" ? [value] : items("stop", value,
    "a text, or a list of them");
  if (several.includes("")) {
    throw new HeadsError("argument", "stop: a stop string cannot be empty");
  }
  return several.map((one) => plain("stop", one));
}

const BESIDE = { assistant: ["tool_calls", "reasoning_content"], tool: ["tool_call_id", "name"] };

// Messages as templates want them: the arguments of earlier calls are objects.
function messages(value) {
  const expected = "a list of messages, each with a role and a content";
  return items("messages", value, expected).map((message) => {
    const { role, content, ...rest } = Object(message);
    const more = Object.entries(rest).filter(([, one]) => one !== undefined && one !== null);
    const { tool_calls: calls, ...texts } = Object.fromEntries(more);
    if (more.some(([name]) => !BESIDE[role]?.includes(name)) || role === undefined ||
      (content === undefined && !calls)) throw refusal("messages", expected, message);
    for (const name in texts) plain(`messages: ${name}`, texts[name]);
    const made = { ...texts, role: c_string("messages: role", role),
      content: calls && !content ? "" : plain("messages: content", content) };
    const found = items("messages: tool_calls", calls ?? [], A_CALL).map(call);
    return found.length ? { ...made, tool_calls: found } : made;
  });
}
const A_CALL = "a list of calls, each with an id and a function that has a name and arguments, an " +
  "object as JSON";
function call(given) {
  try {
    const { id, function: { name, arguments: args } } = given;
    const found = typeof args === "string" ? JSON.parse(args) : args;
    if (typeof id === "string" && typeof name === "string" && found?.constructor === Object) {
      return { id, type: "function", function: { name, arguments: found } };
    }
  } catch { /* it is none */ }
  throw refusal("messages: tool_calls", A_CALL, given);
}
function tools(name, value) {
  const expected = "a list of tools, each with type function, and a function that has a name of at " +
    "most 64 letters, digits, _, . and -";
  return items(name, value, expected).map((tool) => {
    const { name: called, parameters = {} } = tool?.function ?? {};
    if (tool?.type === "function" && /^[\w.-]{1,64}$/.test(called ?? "") &&
      (parameters ?? {}).constructor === Object) return tool;
    throw refusal(name, expected, tool);
  });
}

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const ELSEWHERE = "is not done in a page; python -m heads.server does it";
const OPTIONS = {  // of each call: what checks a value; undefined: it has its default
  open: { context: whole, chunk: whole, n_threads: whole, logit_rows: whole, isa: c_string,
    k_type: one_of(KV_TYPES), v_type: one_of(KV_TYPES), hidden: flag },
  sample: { temperature: [0, 1000], top_k: whole, top_p: [1e-6, 1], min_p: [0, 1],
    repeat_penalty: [1e-3, 1000], repeat_last: whole, frequency_penalty: [-1e3, 1e3],
    presence_penalty: [-1e3, 1e3], seed: (name, value) => whole(name, value, 0, 2n ** 63n - 1n) },
  conversation: { no_think: flag, tools, reasoning_effort: one_of(EFFORTS) },
  generate: { max_tokens: whole, stop: (name, value) => stops(value), lang: c_string,
    top_logprobs: (name, value) => whole(name, value, 0, 1000), tool_choice: null, schema: null },
  forward: { rows: whole, attention: flag, lens: flag },
};
Object.assign(OPTIONS.generate, OPTIONS.sample, OPTIONS.conversation);

function one_of(known) {
  return (name, value) => {
    if (known.includes(value)) return value;
    throw refusal(name, known.join(", "), value);
  };
}

// The options of a call, checked; one of no such name is refused.
function options_of(call, given = {}) {
  const known = OPTIONS[call], found = {};
  if (!given || typeof given !== "object") throw refusal(`${call}: options`, "an object", given);
  for (const [name, value] of Object.entries(given)) {
    const check = known[name];
    if (value === undefined) continue;
    if (check === null) throw new HeadsError("unsupported", `${name}: this ${ELSEWHERE}`);
    if (!check) {
      throw refusal(`${call}: options`, Object.keys(known).filter((n) => known[n]).join(", "), name);
    }
    found[name] = Array.isArray(check) ? number(name, value, ...check) : check(name, value);
  }
  return found;
}
