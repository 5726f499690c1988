// heads.open(file or bytes, options) gives a model: the methods of Engine, and generate, each of
// which gives a promise. Passes run in a worker; where there are none, as in node, in this thread.
class Engine extends Instance {  // heads.h for JavaScript, in the thread where passes run
  taken = [];  // memory that is freed before the next call

  async run(...message) {
    for (const at of this.taken.splice(0)) this.c.heads_free(at);
    return super.run(...message);
  }

  async open(file, options) {  // streams the checkpoint to where it stays
    const begin = file.size < 2 ** 32 ? this.c.reserve(file.size) >>> 0 : 0;
    if (!begin) throw new Error(`its ${file.size} bytes do not fit into WebAssembly's 4 GiB`);
    const pieces = file.stream().getReader();
    for (let at = begin, next; !(next = await pieces.read()).done; at += next.value.length)
      this.memory(Uint8Array, at, next.value.length).set(next.value);
    const names = ["vocab_size", "n_embd", "n_layers", "context", "weight_bytes", "encoder",
      "source_vocab", "greedy", "target_ids", "vector"], at = this.take(64);
    this.model = this.call(0, "heads_model_parse", begin, file.size);
    this.c.heads_model_shape(at, this.model);
    this.shape = { n_threads: options.n_threads };
    this.memory(Uint32Array, at, names.length).forEach((n, i) => { this.shape[names[i]] = n; });
    this.asked = { ...options, context: options.context ?? Math.min(this.shape.context, 8192) };
    return this.shape;
  }
  options() {  // a heads_workspace_options
    const type = (name = "f16") => ["f16", "f32", "q8", "q4"].indexOf(name), o = this.asked;
    return this.ints([o.context, o.chunk, o.n_threads, o.logit_rows, type(o.k_type), type(o.v_type),
      o.isa ? this.text(o.isa)[0] : 0, 0, o.hidden]);
  }
  // What is made when it is first needed.
  get tokenizer() { return this.t ??= this.make("tokenizer", this.model); }
  get chat() { return this.h ??= this.make("chat", this.model); }
  get workspace() { return this.w ??= this.make("workspace", this.model, this.options()); }
  get batch() {  // one text at a time, whose cache is kept for the next
    return this.b ??= this.make("batch", this.workspace, this.ints([1, 1, this.tokenizer, 0, 0]));
  }

  memory(Type, at, n) { return new Type(this.c.memory.buffer, at >>> 0, n); }
  string(at, n) { return new TextDecoder().decode(this.memory(Uint8Array, at, n).slice()); }
  zeroed(at) { return this.string(at, this.memory(Uint8Array, at).indexOf(0)); }
  take(bytes) { return this.put(new Uint8Array(bytes)); }
  put(array) {
    const at = this.c.malloc(array.byteLength + 1) >>> 0;
    if (!at) throw new Error(`no memory for ${array.byteLength} bytes`);
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
    if (result === failed) throw new Error(this.zeroed(error));
    return result >>> 0;
  }
  make(kind, ...args) { return this.call(0, `heads_${kind}_new`, ...args); }
  free(kind, handle) { this.c[`heads_${kind}_free`](handle); }
  ids(name, ...args) {  // those that a function returns through its last pointer
    const out = this.take(4), n = this.call(-1, name, ...args, out);
    const [at] = this.memory(Uint32Array, out, 1);
    this.taken.push(at);
    return this.memory(Int32Array, at, n).slice();
  }

  tokenize(text, special = true) {
    return this.ids("heads_encode", this.tokenizer, ...this.text(text), special);
  }
  conversation(messages, { no_think = 0 } = {}) {  // its ids, up to where an answer begins
    const rows = messages.flatMap((m) => [this.text(m.role)[0], ...this.text(m.content)]);
    const clock = Math.floor(Date.now() / 1000) - 60 * new Date().getTimezoneOffset();
    return this.ids("heads_chat_encode", this.chat, this.tokenizer, this.ints(rows),
      messages.length, this.ints([1, no_think, clock, 0]));
  }
  embed(texts) {  // a vector each
    const n = this.shape.vector, out = this.take(4 * n * texts.length);
    const ids = texts.map((text) =>
      this.ids("heads_text_ids", this.model, this.tokenizer, ...this.text(text)));
    const rows = this.ints(ids.flatMap((row) => [this.put(row), row.length, 0, 0, 0]));
    this.call(-1, "heads_embed", this.model, this.options(), rows, ids.length, out);
    return ids.map((_, i) => this.memory(Float32Array, out + 4 * n * i, n).slice());
  }

  sequence() { return this.make("sequence", this.workspace, 0); }
  rewind(sequence, n) { this.call(-1, "heads_sequence_rewind", sequence, n); }
  // Runs more tokens: logits after each of the last `rows` of them, and what each layer would say
  // there; their rows of attention.
  forward(sequence, ids, { rows = 1, attention = false, lens = false } = {}) {
    const width = this.asked.hidden ? this.shape.n_embd : this.shape.vocab_size;
    const kept = this.c.heads_keep(this.workspace, attention, lens && width);
    const at = this.call(0, "heads_forward", sequence, this.ints(ids), ids.length, rows);
    const stride = 4 * this.c.heads_logit_stride(this.workspace);
    const logits = Array.from({ length: rows }, (_, i) =>
      this.memory(Float32Array, at + stride * i, width).slice());
    return { logits, ...this.rows(kept) };
  }
  rows(at) {  // those of attention, or of the lens, whose head is -1
    const words = this.memory(Float32Array, ...this.memory(Uint32Array, at, 2)).slice();
    const ints = new Int32Array(words.buffer), found = { attention: [], lens: [] };
    for (let i = 0; i < words.length; ) {
      const [, layer, head, position, first, n, , , of_source] = ints.subarray(i);
      const sink = words[i + 7], weights = words.subarray(i + 9, i += 9 + n);
      if (head < 0) found.lens.push({ layer, position, logits: weights });
      else found.attention.push({ layer, head, position, first, of_source, sink, weights });
    }
    return found;
  }

  sampling(given, answer = false) {  // a heads_sampler_options: ./run's, and what is given
    const at = this.take(56), word = (number) => new Int32Array(Float32Array.of(number).buffer)[0];
    this.c.heads_sampler_defaults(at, answer);
    const [temperature, , top_p, min_p, repeat_penalty] = this.memory(Float32Array, at, 5);
    const o = { temperature, top_p, min_p, repeat_penalty, seed: 0, ...given };
    if (this.shape.greedy && !/temp|top_|min_/.test(Object.keys(given))) o.temperature = 0;
    return [word(o.temperature), o.top_k, word(o.top_p), word(o.min_p), word(o.repeat_penalty),
      o.repeat_last, ...new Int32Array(BigInt64Array.of(BigInt(o.seed)).buffer), 0, 0, 0, 0, 0, 0];
  }
  begin(prompt, o = {}) {  // a text for generate, in the place of the last one; its number
    const chat = typeof prompt[0] === "object", stops = [o.stop ?? []].flat(), none = [0, 0];
    const ids = chat ? this.conversation(prompt, o)
      : typeof prompt === "string" ? this.tokenize(prompt) : prompt;
    const end = chat ? this.c.heads_chat_end(this.chat, this.tokenizer) : -1;
    const text = [this.ints(ids), ids.length], reads = this.shape.source_vocab;
    const request = this.ints([...(reads ? none : text), 0, Math.min(o.max_tokens ?? 256, 1e9),
      ...this.sampling(o, chat), chat, this.ints(stops.flatMap((stop) => this.text(stop))),
      stops.length, this.ints([end]), end >= 0, ...none, ...(reads ? text : none),
      o.lang ? this.text(o.lang)[0] : 0, ...none, ...none, ...none]);
    this.c.heads_keep(this.workspace, 0, 0);
    this.c.heads_batch_cancel(this.batch, this.told);
    return this.told = this.call(-1, "heads_batch_add", this.batch, request);
  }
  next(number) {  // its next tokens, and why it ends
    if (number !== this.told) throw new Error("another text has begun");
    const out = this.take(4), n = this.call(-1, "heads_batch_step", this.batch, out);
    const events = this.memory(Uint32Array, this.memory(Uint32Array, out, 1)[0], 12 * n);
    return Array.from({ length: n }, (_, i) => {
      const [, , id, , , , , , text, length, stopped, error] = events.subarray(12 * i);
      if (error) throw new Error(this.zeroed(error));
      return stopped ? { stopped: this.zeroed(stopped) } : { id, text: this.string(text, length) };
    });
  }
}

globalThis.heads = {
  Engine,
  async open(source, options = {}, Kind = Engine) {  // Kind: a class with methods of its own, too
    const { call, close, n_threads } = await Kind.start(options.n_threads);
    const file = source.stream ? source : new Blob([source]);
    const shape = await call("open", file, { ...options, n_threads })
      .catch((error) => { close(); throw error; });
    async function* generate(prompt, options) {  // { id, text } of each token; returns why it ended
      const number = await call("begin", prompt, options);
      for (;;) {
        for (const event of await call("next", number)) {
          if (event.stopped) return event.stopped;
          yield event;
        }
      }
    }
    return new Proxy({ shape, generate, close, then: undefined },
      { get: (own, name) => name in own ? own[name] : (...args) => call(name, ...args) });
  },
};
