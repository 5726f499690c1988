const LATER = Array(16).fill(0);  // what structs have beyond the members that are set here

// heads.h for JavaScript, in the worker where passes run. The page calls its methods; what is made
// there is known to the page by numbers, of which none is used twice.
class Engine extends Instance {
  static methods = ["tokenize", "decode", "conversation", "embed", "classify", "rank", "labels",
    "sequence", "rewind", "forward", "free", "experiment", "verify"];
  held = new Map();

  // ---- the checkpoint: room for it, its pieces, and what stands there ----

  reserve(size) {
    this.begins = size < 2 ** 32 ? this.c.reserve(size) >>> 0 : 0;
    if (!this.begins) {
      throw new HeadsError("memory", `its ${size} bytes do not fit into WebAssembly's 4 GiB`);
    }
    [this.size, this.got] = [size, 0];
  }
  piece(bytes) {
    if (this.got + bytes.length > this.size) {
      throw new HeadsError("refused", `there are more bytes than the ${this.size} that it says`);
    }
    this.memory(Uint8Array, this.begins + this.got, bytes.length).set(bytes);
    this.got += bytes.length;
  }
  opened(first, options) {  // what page and kinds need to know; handles count from `first`
    this.last = first;
    this.open(options);
    const own = Object.getPrototypeOf(this), names = [];
    for (let at = own; at !== Engine.prototype; at = Object.getPrototypeOf(at)) {
      names.push(...Object.getOwnPropertyNames(at));
    }
    return { shape: this.shape, methods: [...Engine.methods, ...names] };
  }
  open(options) {
    const asked = options_of("open", options), at = this.take(64);
    const names = ["vocab_size", "n_embd", "n_layers", "context", "weight_bytes", "encoder",
      "source_vocab", "greedy", "target_ids", "vector", "n_labels", "token_classes",
      "token_vectors", "most_read"];
    this.model = this.call(0, "heads_model_parse", this.begins, this.got);
    this.c.heads_model_shape(at, this.model);
    this.shape = { n_threads: asked.n_threads };
    this.memory(Uint32Array, at, names.length).forEach((n, i) => { this.shape[names[i]] = n; });
    this.asked = { ...asked, context: asked.context ?? Math.min(this.shape.context, 8192) };
  }
  options() {  // a heads_workspace_options
    const type = (name = "f16") => KV_TYPES.indexOf(name), o = this.asked;
    return this.ints([o.context, o.chunk, o.n_threads, o.logit_rows, type(o.k_type), type(o.v_type),
      o.isa ? this.text(o.isa)[0] : 0, 0, o.hidden, ...LATER]);
  }
  // What is made when it is first needed.
  get tokenizer() { return this.t ??= this.make("tokenizer", this.model); }
  get chat() { return this.h ??= this.make("chat", this.model); }
  get workspace() { return this.w ??= this.make("workspace", this.model, this.options()); }
  get batch() {  // one text at a time, whose cache is kept for the next
    return this.b ??= this.make("batch", this.workspace, this.ints([1, 1, this.tokenizer, 0, 0]));
  }

  // ---- memory, and calls of C ----

  memory(Type, at, n) { return new Type(this.c.memory.buffer, at >>> 0, n); }
  string(at, n) {
    return new TextDecoder("utf-8", { ignoreBOM: true })
      .decode(this.memory(Uint8Array, at, n).slice());
  }
  zeroed(at) { return this.string(at, this.memory(Uint8Array, at).indexOf(0)); }
  take(bytes) { return this.put(new Uint8Array(bytes)); }
  put(array) {
    const at = this.c.malloc(array.byteLength + 1) >>> 0;
    if (!at) throw new HeadsError("memory", `no memory for ${array.byteLength} bytes`);
    this.taken.push(at);
    this.memory(array.constructor, at, array.length).set(array);
    return at;
  }
  ints(numbers) { return this.put(Int32Array.from(numbers)); }
  text(string) {  // where its bytes are, zero-terminated, and how many
    const bytes = new TextEncoder().encode(string + "\0");
    return [this.put(bytes), bytes.length - 1];
  }
  // Calls a function whose last parameter is a heads_error; `failed` is what it returns with one.
  call(failed, name, ...args) {
    const error = this.take(400), result = this.c[name](...args, error);
    if (result === failed) throw new HeadsError("refused", this.zeroed(error));
    return result >>> 0;
  }
  make(kind, ...args) { return this.call(0, `heads_${kind}_new`, ...args); }
  hold(kind, at) {
    this.held.set(++this.last, { kind, at });
    return this.last;
  }
  of(kind, handle) {
    const found = this.held.get(handle);
    if (found?.kind === kind) return found.at;
    throw new HeadsError("freed", `${kind} ${repr(handle)} is none of this model: it was freed, or ` +
      "is another's");
  }
  free(kind, handle) {
    this.c[`heads_${kind}_free`](this.of(kind, handle));
    this.held.delete(handle);
  }
  ids(name, ...args) {  // those that a function returns through its last pointer
    const out = this.take(4), n = this.call(-1, name, ...args, out);
    const [at] = this.memory(Uint32Array, out, 1);
    this.taken.push(at);
    return this.memory(Int32Array, at, n).slice();
  }

  // ---- texts, their vectors and classes ----

  tokenize(text, special = true) {
    return this.ids("heads_encode", this.tokenizer, ...this.text(plain("text", text)),
      flag("special", special));
  }
  decode(ids) {  // the text of all, as run prints it
    const decoder = this.make("decoder", this.tokenizer, true), out = this.take(8);
    let text = "";
    const add = (name, ...args) => {
      this.call(-1, name, decoder, ...args, out, out + 4);
      text += this.string(...this.memory(Uint32Array, out, 2));
    };
    try {
      for (const id of id_list("ids", ids)) add("heads_decoder_push", id);
      add("heads_decoder_finish");
    } finally {
      this.c.heads_decoder_free(decoder);
    }
    return text;
  }
  // The ids of a conversation, up to where an answer begins. text: what its template writes, where
  // unwritten() says that it has to.
  conversation(given, options, text) {
    const asked = options_of("conversation", options), said = messages(given);
    if (text !== undefined) return this.tokenize(text, false);
    const no_think = thinking(this.template, asked).enable_thinking === false;
    const rows = said.flatMap((m) => [this.text(m.role)[0], ...this.text(m.content)]);
    const clock = Math.floor(Date.now() / 1000) - 60 * new Date().getTimezoneOffset();
    return this.ids("heads_chat_encode", this.chat, this.tokenizer, this.ints(rows), said.length,
      this.ints([1, no_think, clock, 0]));
  }
  get template() {  // in Jinja, "": there is none
    const size = this.take(4), at = this.c.heads_chat_template(this.model, size);
    return at ? this.string(at, this.memory(Uint32Array, size, 1)[0]) : "";
  }
  // What the template itself has to write, since the library's compiled form knows no such thing:
  // its text, and what it is told. null: nothing.
  unwritten(call, given, options) {
    const asked = options_of(call, options), said = messages(given), { template } = this;
    const told = thinking(template, asked), list = asked.tools?.length ? asked.tools : null;
    const why = list ? "tools" : said.some((m) => Object.keys(m).length > 2) ? "messages of tools"
      : told.enable_thinking === undefined ? Object.keys(told)[0] : null;
    if (!why) return null;
    if (!template) this.chat;  // which says that there is none
    const end = Array.from({ length: this.shape.vocab_size }, (_, id) => id)
      .find((id) => this.c.heads_is_eos(this.tokenizer, id));
    const [begin] = this.tokenize(""), tokens = {};
    for (const [name, id] of [["bos_token", begin], ["eos_token", end]]) {
      if (id !== undefined) tokens[name] = this.token_text(id);
    }
    return { why, template, messages: said, told: { ...tokens, ...told, tools: list } };
  }
  // Refuses a template of which `text` was made of this conversation, if the library has another.
  same(given, text) {
    let known;
    try {
      known = this.conversation(given);
    } catch {
      return;  // the library does not have it
    }
    if (String(known) === String(this.tokenize(text, false))) return;
    throw new HeadsError("refused", "this checkpoint's chat template is not reproduced with tools");
  }
  token_text(id) {
    const at = this.take(1024);
    return this.string(at, Math.min(1024, this.c.heads_token_bytes(this.tokenizer, id, at, 1024)));
  }
  // What `name` writes of texts: n numbers for each, or for each of its ids.
  read(name, readings, n, of_ids) {
    const rows = readings.flatMap(({ ids, second = 0 }) => [this.put(ids), ids.length, second, 0, 0]);
    const counts = readings.map(({ ids }) => (of_ids ? ids.length : 1));
    const out = this.take(4 * n * counts.reduce((a, b) => a + b, 0));
    this.call(-1, name, this.model, this.options(), this.ints(rows), readings.length, out);
    let at = out;
    const row = () => this.memory(Float32Array, (at += 4 * n) - 4 * n, n).slice();
    const found = counts.map((count) => Array.from({ length: count }, row));
    return of_ids ? found : found.flat();
  }
  reading(text) {
    return { ids: this.ids("heads_text_ids", this.model, this.tokenizer, ...this.text(text)) };
  }
  pair(first, then) {
    const second = this.take(4), out = this.take(4), n = this.call(-1, "heads_pair_ids", this.model,
      this.tokenizer, ...this.text(first), ...this.text(then), out, second);
    const [at] = this.memory(Uint32Array, out, 1);
    this.taken.push(at);
    return { ids: this.memory(Int32Array, at, n).slice(),
      second: this.memory(Int32Array, second, 1)[0] };
  }
  embed(given) {  // a vector each, or one for each of its tokens
    const readings = texts("texts", given).map((text) => this.reading(text));
    return this.read("heads_embed", readings, this.shape.vector, this.shape.token_vectors);
  }
  labels() {
    const size = this.take(4);
    return Array.from({ length: this.shape.n_labels }, (_, i) => this.string(
      this.c.heads_label(this.model, i, size), this.memory(Uint32Array, size, 1)[0]));
  }
  // Each text's classes, { label, score }, the likeliest first, or for each token its likeliest.
  classify(given) {
    const expected = "a list of texts, or of pairs of them", names = this.labels();
    const readings = items("texts", given, expected).map((one) => (Array.isArray(one)
      ? this.pair(...texts("texts", one)) : this.reading(plain("texts", one))));
    const { n_labels, token_classes } = this.shape;
    const found = this.read("heads_classify", readings, n_labels, token_classes);
    const sorted = (row) => Array.from(row, (score, i) => ({ label: names[i], score }))
      .sort((a, b) => b.score - a.score);
    return found.map((row) => (token_classes ? row.map((one) => sorted(one)[0]) : sorted(row)));
  }
  rank(query, documents) {  // { index, score } of each, the best first
    const { n_labels: n, token_classes } = this.shape;
    if (n !== 1 || token_classes) {
      const has = n ? `${n} classes${token_classes ? " of each token" : ""}` : "none";
      throw new HeadsError("refused", "it cannot rank documents: that needs a cross-encoder's " +
        `head, which gives a single score for a pair of texts, and the checkpoint has ${has}`);
    }
    plain("query", query);
    const pairs = texts("documents", documents).map((text) => this.pair(query, text));
    return this.read("heads_classify", pairs, 1, 0).map(([score], index) => ({ index, score }))
      .sort((a, b) => b.score - a.score);
  }

  // ---- passes ----

  sequence() { return this.hold("sequence", this.make("sequence", this.workspace, 0)); }
  rewind(sequence, n) {
    this.call(-1, "heads_sequence_rewind", this.of("sequence", sequence), whole("n", n));
  }
  // Runs more tokens: logits after each of the last `rows` of them, and what each layer would say
  // there; their rows of attention.
  forward(sequence, ids, options) {
    const { rows = 1, attention = false, lens = false } = options_of("forward", options);
    const width = this.asked.hidden ? this.shape.n_embd : this.shape.vocab_size;
    const at_ids = this.ints(id_list("ids", ids)), text = this.of("sequence", sequence);
    const kept = this.c.heads_keep(this.workspace, attention, lens && width);
    const at = this.call(0, "heads_forward", text, at_ids, ids.length, rows);
    const stride = 4 * this.c.heads_logit_stride(this.workspace);
    const logits = Array.from({ length: rows }, (_, i) =>
      this.memory(Float32Array, at + stride * i, width).slice());
    return { logits, ...this.rows(kept) };
  }
  rows(at) {  // those of attention, or of the lens, whose head is -1
    const [words_at, used, , full] = this.memory(Uint32Array, at, 4);
    if (full) throw new HeadsError("memory", "no memory for the rows of attention");
    const words = this.memory(Float32Array, words_at, used).slice();
    const ints = new Int32Array(words.buffer), found = { attention: [], lens: [] };
    for (let i = 0; i < words.length; ) {
      const [, layer, head, position, first, n, , , of_source] = ints.subarray(i);
      const sink = words[i + 7], weights = words.subarray(i + 9, i += 9 + n);
      if (head < 0) found.lens.push({ layer, position, logits: weights });
      else found.attention.push({ layer, head, position, first, of_source, sink, weights });
    }
    return found;
  }

  // ---- experiments ----

  written(name, given, ...args) {  // calls what takes JSON and an options struct
    const options = this.options(), [at, n] = this.text(JSON.stringify(given));
    this.memory(Uint32Array, options + 28, 1)[0] = this.workspace;  // its threads
    return this.c[name](this.model, options, at, n, 0, 0, ...args) >>> 0;
  }
  experiment(described) {  // its result, with a SHA-256
    const error = this.take(400), at = this.written("heads_experiment", described, error);
    if (!at) throw new HeadsError("refused", this.zeroed(error));
    const result = this.zeroed(at);
    this.c.heads_free(at);
    return JSON.parse(result);
  }
  verify(result) {  // null: it holds; else what differs
    const error = this.take(400), found = this.written("heads_verify", result, error) | 0;
    if (found < 0) throw new HeadsError("refused", this.zeroed(error));
    return found ? null : this.zeroed(error);
  }

  // ---- texts that go on ----

  sampling(given, answer = false) {  // a heads_sampler_options: ./run's, and what is given
    const at = this.take(56), word = (number) => new Int32Array(Float32Array.of(number).buffer)[0];
    this.c.heads_sampler_defaults(at, answer);
    const [temperature, , top_p, min_p, repeat_penalty] = this.memory(Float32Array, at, 5);
    const o = { temperature, top_p, min_p, repeat_penalty, seed: 0, frequency_penalty: 0,
      presence_penalty: 0, ...given };
    if (this.shape.greedy && !/temp|top_[kp]|min_/.test(Object.keys(given))) o.temperature = 0;
    return [word(o.temperature), o.top_k, word(o.top_p), word(o.min_p), word(o.repeat_penalty),
      o.repeat_last, ...new Int32Array(BigInt64Array.of(BigInt(o.seed)).buffer), 0, 0, 0,
      word(o.frequency_penalty), word(o.presence_penalty), 0];
  }
  // A text for generate, in the place of the last one; its number. text: as of conversation().
  begin(prompt, options, text) {
    const o = options_of("generate", options), { no_think, tools, reasoning_effort, lang } = o;
    const chat = typeof prompt?.[0] === "object", stop = o.stop ?? [], none = [0, 0];
    const ids = chat ? this.conversation(prompt, { no_think, tools, reasoning_effort }, text)
      : typeof prompt === "string" ? this.tokenize(prompt) : id_list("prompt", prompt);
    const reader = chat ? this.reader(ids, tools) : null, { top_logprobs } = o;
    const end = reader?.form?.harmony ? this.only_token("<|call|>")
      : chat ? this.c.heads_chat_end(this.chat, this.tokenizer) : -1;
    const given = [this.ints(ids), ids.length], reads = this.shape.source_vocab;
    const request = this.ints([...(reads ? none : given), 0, Math.min(o.max_tokens ?? 256, 1e9),
      ...this.sampling(o, chat), chat, this.ints(stop.flatMap((one) => this.text(one))),
      stop.length, this.ints([end]), end >= 0, top_logprobs !== undefined, top_logprobs,
      ...(reads ? given : none), lang ? this.text(lang)[0] : 0, ...LATER]);
    this.c.heads_keep(this.workspace, 0, 0);
    this.cancel(this.told);
    this.likely = top_logprobs !== undefined;
    this.read_by = reader;
    return this.told = this.call(-1, "heads_batch_add", this.batch, request);
  }
  // Of what is said, thought and called; null: an answer has but one part.
  reader(ids, tools) {
    const { template } = this, harmony = is_harmony(template);
    const thinks = !harmony && template.includes("</think>");
    const form = harmony || tools?.length ? form_of(template) : null;
    if (!form && !thinks) return null;
    const last = Array.from(ids.slice(-16), (id) => this.token_text(id)).join("");
    return new Reader(form, tools, thinks, thinks && last.trimEnd().endsWith("<think>"));
  }
  only_token(text) {  // -1: it is several
    const [id, more] = this.tokenize(text, false);
    return more === undefined ? id : -1;
  }
  cancel(number) {
    if (number !== this.told || number === undefined) return;
    this.c.heads_batch_cancel(this.batch, number);
    this.told = undefined;
  }
  next(number) {  // its next tokens, and why it ends
    if (number !== this.told) throw new HeadsError("replaced", "another text has begun");
    const out = this.take(4), n = this.call(-1, "heads_batch_step", this.batch, out);
    const at = this.memory(Uint32Array, out, 1)[0], events = this.memory(Uint32Array, at, 12 * n);
    return Array.from({ length: n }, (_, i) => {
      const [, , id, , , , top, n_top, text, length, stopped, error] = events.subarray(12 * i);
      if (error) throw new HeadsError("refused", this.zeroed(error));
      if (stopped) return this.ended(this.zeroed(stopped));
      const said = this.string(text, length), token = { id, ...this.read_by?.push(said) ?? { text: said } };
      if (!this.likely) return token;
      const [log_probability] = this.memory(Float64Array, at + 48 * i + 16, 1);
      return { ...token, log_probability, top: this.likeliest_at(top, n_top) };
    }).flat();
  }
  ended(stopped) {  // what was held back, and why
    if (!this.read_by) return { stopped };
    const left = this.read_by.push("", true), called = this.read_by.told.calls.length;
    return [{ id: -1, ...left }, { stopped: called && /eos|^stop/.test(stopped) ? "tool_calls" : stopped }]
      .slice(left.text || Object.keys(left).length > 1 ? 0 : 1);
  }
  likeliest_at(at, n) {  // of heads_likely[n]
    return Array.from({ length: n }, (_, i) => ({ id: this.memory(Int32Array, at + 16 * i, 1)[0],
      log_probability: this.memory(Float64Array, at + 16 * i + 8, 1)[0] }));
  }
}
kind = Engine;
