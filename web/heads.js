// heads.open(file or bytes, options) gives a model: the methods of Engine, and generate, each of
// which gives a promise. Passes run in a worker; where there are none, as in node, in this thread.
class Engine {  // heads.h for JavaScript, in the thread where passes run
  taken = [];  // memory that is freed before the next call
  threads = []; n_started = 0;  // of workers, kept: one that nobody refers to may be ended

  // Such an engine, in a worker if there are any: call(name, ..) promises what its method returns.
  static start() {
    const engine = new this(), waiting = [];
    if (typeof Worker === "undefined")
      return { call: (name, ...args) => engine.run(name, ...args), close() {} };
    const code = [Engine, this === Engine ? "" : this, `; onmessage = new ${this.name}().answer`];
    const side = new Worker(URL.createObjectURL(new Blob(code)));
    const fail = (why) => waiting.forEach(([, reject]) => reject(new Error(why)));
    side.onerror = ({ message }) => fail(message);
    side.onmessage = ({ data: [result, error] }) => {  // answers come in the order of calls
      const [resolve, reject] = waiting.shift();
      return error ? reject(error) : resolve(result);
    };
    return {
      async call(...message) {
        side.postMessage(message);
        return new Promise((...how) => waiting.push(how));
      },
      close() { side.terminate(); fail("the model was closed"); },
    };
  }
  answer = ({ data }) =>
    this.run(...data).then((result) => postMessage([result]), (error) => postMessage([0, error]));
  async run(name, ...args) {
    for (const at of this.taken.splice(0)) this.c.heads_free(at);
    return this[name](...args);
  }

  // Streams the checkpoint to where it stays; a thread has an instance on the same memory.
  async open(module, file, options) {
    const bytes = file.size, pieces = file.stream().getReader();
    const shared = WebAssembly.Module.imports(module).some(({ kind }) => kind === "memory");
    const memory = shared && new WebAssembly.Memory({ initial: 512, maximum: 65535, shared });
    await this.instantiate(module, memory);
    this.c._initialize();
    const n_threads = shared ? options.n_threads ?? navigator.hardwareConcurrency : 1;
    this.threads = Array.from({ length: n_threads - 1 }, () => Engine.start().call);
    await Promise.all(this.threads.map((call) => call("instantiate", module, memory)));
    const begin = bytes < 2 ** 32 ? this.c.reserve(bytes) >>> 0 : 0;
    if (!begin) throw new Error(`its ${bytes} bytes do not fit into WebAssembly's 4 GiB`);
    for (let at = begin, next; !(next = await pieces.read()).done; at += next.value.length)
      this.memory(Uint8Array, at, next.value.length).set(next.value);
    this.load(begin, bytes, { ...options, n_threads });
    return this.shape;
  }
  async instantiate(module, memory) {
    const clock_time_get = (id, precision, at) =>
      (this.view.setBigInt64(at, BigInt(Math.round(performance.now() * 1e6)), true), 0);
    const start = (...job) => !!this.threads[this.n_started++]?.("work", ...job);
    this.c = (await WebAssembly.instantiate(module, { heads: { start }, env: { memory },
      wasi_snapshot_preview1: { clock_time_get, sched_yield: () => 0 } })).exports;
  }
  work(thread, stack) {
    this.c.__stack_pointer.value = stack;
    this.c.wasm_thread(thread);
  }
  load(begin, bytes, options) {
    const names = ["vocab_size", "n_embd", "n_layers", "context", "weight_bytes", "encoder",
      "source_vocab", "greedy", "target_ids", "vector"];
    const at = this.take(64);
    this.model = this.call(0, "heads_model_parse", begin, bytes);
    this.c.heads_model_shape(at, this.model);
    this.shape = { n_threads: options.n_threads };
    this.memory(Uint32Array, at, names.length).forEach((n, i) => { this.shape[names[i]] = n; });
    this.asked = { ...options, context: options.context ?? Math.min(this.shape.context, 8192) };
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
    return this.b ??= this.make("batch", this.workspace, this.ints([1, 1, this.tokenizer]));
  }

  get view() { return new DataView(this.c.memory.buffer); }
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
  ids(name, ...args) {  // those that a function returns through its last pointer
    const out = this.take(4), n = this.call(-1, name, ...args, out);
    this.taken.push(this.view.getUint32(out, true));
    return this.memory(Int32Array, this.taken.at(-1), n).slice();
  }

  isa() { return this.zeroed(this.c.heads_workspace_isa(this.workspace)); }
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
    const rows = this.ints(ids.flatMap((row) => [this.put(row), row.length, 0]));
    this.call(-1, "heads_embed", this.model, this.options(), rows, ids.length, out);
    return ids.map((_, i) => this.memory(Float32Array, out + 4 * n * i, n).slice());
  }

  // Handles, which free(kind, handle) frees.
  sequence() { return this.make("sequence", this.workspace, 0); }
  decoder(skip = false) { return this.make("decoder", this.tokenizer, skip); }
  sampler(o) { return this.make("sampler", this.workspace, this.put(this.sampling(o))); }
  free(kind, handle) { this.c[`heads_${kind}_free`](handle); }
  sampling(o = {}) {  // the words of a heads_sampler_options, from its members
    const words = new Int32Array(10), real = [o.temperature, 0, o.top_p, o.min_p, o.repeat_penalty];
    new Float32Array(words.buffer).set(real.map((number) => number ?? 0));
    new BigInt64Array(words.buffer).set([BigInt(o.seed ?? 0), BigInt(o.most ?? 0)], 3);
    [words[1], words[5]] = [o.top_k, o.repeat_last];
    return words;
  }
  rewind(sequence, n) { this.call(-1, "heads_sequence_rewind", sequence, n); }
  off(sequence, list) { this.call(-1, "heads_sequence_off", sequence, this.text(list)[0]); }
  accept(sampler, id) { this.c.heads_sampler_accept(sampler, id); }
  pick(sampler, logits) { return this.c.heads_sampler_pick(sampler, this.put(logits)); }
  push(decoder, id) {  // the text that an id adds
    const out = this.take(8);
    this.call(-1, "heads_decoder_push", decoder, id, out, out + 4);
    return this.string(...this.memory(Uint32Array, out, 2));
  }
  likeliest(logits, k) {  // the k likeliest tokens after them
    const top = this.take(16 * k);
    const n = this.c.heads_likeliest(this.workspace, this.put(logits), top, k);
    return Array.from({ length: n }, (_, i) => ({ id: this.view.getInt32(top + 16 * i, true),
      probability: Math.exp(this.view.getFloat64(top + 16 * i + 8, true)) }));
  }
  // Runs more tokens: logits after each of the last `rows` of them, and what each layer would say
  // there; their rows of attention.
  forward(sequence, ids, { rows = 1, attention = false, lens = false } = {}) {
    const width = this.asked.hidden ? this.shape.n_embd : this.shape.vocab_size;
    const kept = this.c.heads_keep(this.workspace, attention, lens && width);
    const at = this.call(0, "heads_forward", sequence, this.ints(ids), ids.length, rows);
    const stride = 4 * this.c.heads_logit_stride(this.workspace);
    const found = { logits: [], attention: [], lens: [] };
    for (let i = 0; i < rows; i++)
      found.logits.push(this.memory(Float32Array, at + stride * i, width).slice());
    const words = this.memory(Float32Array, ...this.memory(Uint32Array, kept, 2)).slice();
    const ints = new Int32Array(words.buffer);
    for (let i = 0; i < words.length; ) {
      const [, layer, head, position, first, n, , , of_source] = ints.subarray(i);
      const sink = words[i + 7], weights = words.subarray(i + 9, i += 9 + n);
      if (head < 0) found.lens.push({ layer, position, logits: weights });
      else found.attention.push({ layer, head, position, first, of_source, sink, weights });
    }
    return found;
  }

  begin(prompt, o = {}) {  // the number of a text for generate, which takes the last one's place
    const chat = typeof prompt[0] === "object", stops = [o.stop ?? []].flat(), none = [0, 0];
    const ids = chat ? this.conversation(prompt, o)
      : typeof prompt === "string" ? this.tokenize(prompt) : prompt;
    const end = chat ? this.c.heads_chat_end(this.chat, this.tokenizer) : -1;
    const text = [this.ints(ids), ids.length], reads = this.shape.source_vocab;
    const request = this.ints([...(reads ? none : text), 0, Math.min(o.max_tokens ?? 256, 1e9),
      ...this.sampling(o), chat, this.ints(stops.flatMap((stop) => this.text(stop))), stops.length,
      this.ints([end]), end >= 0, ...none, ...(reads ? text : none),
      o.lang ? this.text(o.lang)[0] : 0, ...none, ...none, ...none]);
    this.c.heads_keep(this.workspace, 0, 0);
    this.c.heads_batch_cancel(this.batch, this.told);
    return this.told = this.call(-1, "heads_batch_add", this.batch, request);
  }
  next(number) {  // its next token, and why it ends
    if (number !== this.told) throw new Error("another text has begun");
    const out = this.take(4);
    let n = 0;
    while (!n) n = this.call(-1, "heads_batch_step", this.batch, out);
    const events = this.memory(Uint32Array, this.view.getUint32(out, true), 12 * n);
    return Array.from({ length: n }, (_, i) => {
      const [, , id, , , , , , text, length, stopped, error] = events.subarray(12 * i);
      if (error) throw new Error(this.zeroed(error));
      return stopped ? { stopped: this.zeroed(stopped) } : { id, text: this.string(text, length) };
    });
  }
}

// The first module that runs here: with threads, which want a page that is cross-origin isolated
// and do not always start in Firefox; without; without relaxed SIMD.
const module_for_here = async () => {
  const threads = globalThis.crossOriginIsolated && !navigator.userAgent.includes("Firefox");
  for (const packed of MODULES.slice(threads ? 0 : 1)) {
    const bytes = new Blob([Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))]);
    const unpacked = bytes.stream().pipeThrough(new DecompressionStream("gzip"));
    const module = await new Response(unpacked).arrayBuffer();
    if (WebAssembly.validate(module)) return WebAssembly.compile(module);
  }
};

globalThis.heads = {
  Engine,
  async open(source, options = {}, Kind = Engine) {  // Kind: a class with methods of its own, too
    const { call, close } = Kind.start();
    const file = source.stream ? source : new Blob([source]);
    const shape = await call("open", await module_for_here(), file, options);
    async function* generate(prompt, options) {  // { id, text } of each token; returns why it ended
      const number = await call("begin", prompt, options);
      for (;;) {
        const [token, end = token] = await call("next", number);
        if (token.text || (token !== end && end.stopped !== "eos")) yield token;
        if (end.stopped) return end.stopped;
      }
    }
    return new Proxy({ shape, generate, close, then: undefined },
      { get: (own, name) => name in own ? own[name] : (...args) => call(name, ...args) });
  },
};
