// What the worker does for this page, beside the engine's own methods (web/engine.js). The page gives
// this text to heads.open.

const word_of = (number) => new Int32Array(Float32Array.of(number).buffer)[0];
const float_of = (word) => new Float32Array(Uint32Array.of(word).buffer)[0];

class Looking extends Engine {
  open({ most, ...options }) {
    super.open(options);
    this.asked.context = Math.min(this.shape.context, most);
  }
  // Each layer of inspect.h's LayerFacts.
  layers() {
    const names = ["mixer", "number", "attends", "sees", "n_heads", "n_kv_heads", "head_dim",
      "window", "rope", "latent_rank", "kv_from", "sinks", "d_ff"], at = this.take(64);
    return Array.from({ length: this.shape.n_layers }, (_, i) => {
      this.c.inspect_layer(at, this.model, i);
      const numbers = this.memory(Int32Array, at, names.length);
      const facts = Object.fromEntries(names.map((name, k) => [name, numbers[k]]));
      return { ...facts, attends: facts.attends & 255, sinks: facts.sinks & 255,
        mixer: this.zeroed(facts.mixer) };
    });
  }
  texts(ids) {  // of each token by itself
    const room = 1024, at = this.take(room);
    return Array.from(ids, (id) => {
      const n = Math.min(room, this.c.heads_token_bytes(this.tokenizer, id, at, room));
      const bytes = Array.from(this.memory(Uint8Array, at, n)), text = this.string(at, n);
      const hex = (byte) => "⟨" + byte.toString(16).toUpperCase() + "⟩";
      return text.includes("\ufffd") ? bytes.map(hex).join("") : text;
    });
  }
  // Forgets what is not the beginning of ids, all of it where a rewind fails; the last is to run.
  common(sequence, ids) {
    const at = this.of("sequence", sequence);
    const n = this.c.heads_sequence_common(at, this.ints(ids), ids.length - 1);
    if (this.c.heads_sequence_rewind(at, n, 0)) this.rewind(sequence, 0);
    return this.c.heads_sequence_length(at);
  }
  // Runs what is missing of ids, at least those from `from` on: the logits after the last, the rows
  // of attention of those that ran, and the cache's bytes.
  look(sequence, ids, from, options) {
    const begin = this.common(sequence, ids.slice(0, Math.min(from + 1, ids.length)));
    const found = this.forward(sequence, ids.slice(begin), options), usage = this.take(20);
    this.c.heads_sequence_kv_usage(usage, this.of("sequence", sequence));
    const [, bytes] = this.memory(Uint32Array, usage, 2);
    return { ...found, logits: found.logits[0], bytes };
  }
  // Gives all sequences to come an adapter, which export.py has made for this model.
  adapt(bytes) {
    const at = Math.ceil(this.take(bytes.length + 64) / 64) * 64;
    this.taken.pop();  // it stays
    this.memory(Uint8Array, at, bytes.length).set(bytes);
    const adapter = this.call(0, "heads_adapter_parse", this.model, at, bytes.length);
    this.call(-1, "heads_workspace_adapter", this.workspace, adapter, 1);
  }
  // Empties a sequence, which then runs without these heads, and with these steers.
  change(sequence, off, steers = []) {
    const at = this.of("sequence", sequence);
    this.rewind(sequence, 0);
    this.call(-1, "heads_sequence_off", at, this.text(off)[0]);
    for (let layer = 0; layer + 1 < this.shape.n_layers; layer++) {
      this.call(-1, "heads_sequence_steer", at, layer, 0, 1);
    }
    for (const { layer, vector, scale } of steers) {
      this.call(-1, "heads_sequence_steer", at, layer, this.put(vector), scale);
    }
  }
  steers(list) {  // heads_steer[..], and how many
    const words = list.flatMap(({ layer, vector, scale }) => [layer, this.put(vector), word_of(scale)]);
    return [this.ints(words), list.length];
  }
  // The mean of the stream after a layer, at the last tokens of texts.
  mean_stream(texts, layer) {
    const { n_embd } = this.shape, sum = new Float64Array(n_embd);
    for (const text of texts) {
      const sequence = this.sequence(), ids = this.tokenize(text);
      try {
        const kept = this.c.heads_keep_stream(this.workspace, layer + 1);
        this.call(0, "heads_forward", this.of("sequence", sequence), this.ints(ids), ids.length, 1);
        this.rows(kept).lens.at(-1).logits.forEach((x, i) => { sum[i] += x / texts.length; });
      } finally {
        this.free("sequence", sequence);
      }
    }
    return sum;
  }
  // What some texts have more of than others (Rimsky et al. 2023, arXiv 2312.06681).
  direction(positive, negative, layer) {
    const less = this.mean_stream(negative, layer);
    return Float32Array.from(this.mean_stream(positive, layer), (x, i) => x - less[i]);
  }
  likeliest(logits, k) {  // the k likeliest tokens after them
    const top = this.take(16 * k);
    const n = this.c.heads_likeliest(this.workspace, this.put(logits), top, k);
    return Array.from({ length: n }, (_, i) => ({ id: this.memory(Int32Array, top + 16 * i, 1)[0],
      probability: Math.exp(this.memory(Float64Array, top + 16 * i + 8, 1)[0]) }));
  }
  // What each layer would say after the last of ids, and the rank of the last layer's answer.
  say(sequence, ids, k) {
    const { lens } = this.look(sequence, ids, ids.length, { lens: true });
    const [final] = lens.length ? this.likeliest(lens.at(-1).logits, 1) : [];
    return lens.map(({ layer, logits }) => {
      const score = logits[final.id];
      const above = (n, x, id) => n + (x > score || (x === score && id < final.id));
      return { layer, likeliest: this.likeliest(logits, k), rank: logits.reduce(above, 1) };
    });
  }
  // The logits after ids without these heads, and with these steers, in a sequence of its own.
  after(ids, off, steers = []) {
    const changes = JSON.stringify([off, steers]);
    this.aside ??= { sequence: this.sequence(), changes: '["",[]]' };
    if (this.aside.changes !== changes) this.change(this.aside.sequence, off, steers);
    this.aside.changes = changes;
    return this.look(this.aside.sequence, ids, ids.length, {}).logits;
  }
  // What adds to the logit of `answer` after ids (-1: the likeliest), less that of `against` (-1:
  // less nothing): heads [n_layers][n_heads] and more; or why it is no sum. And the k likeliest.
  way(ids, { answer, against, off, steers }, k) {
    const { n_layers } = this.shape, n_heads = this.c.heads_model_heads(this.model);
    const likeliest = this.likeliest(this.after(ids, off, steers), k);
    const ffn = this.take(4 * n_layers), heads = this.take(4 * n_layers * n_heads);
    const parts = this.take(32), found = { likeliest, answer, against, n_heads };
    if (answer < 0) found.answer = likeliest[0].id;
    try {
      this.call(-1, "heads_attribute", this.model, this.options_here(), this.ints(ids), ids.length,
        found.answer, against, this.text(off)[0], heads, ffn, parts);
    } catch (error) {
      if (error.code !== "refused") throw error;
      return { ...found, refused: error.message };
    }
    const [embedding, rest, total, logit] = this.memory(Float64Array, parts, 4);
    return { ...found, embedding, rest, total, logit, ffn: this.memory(Float32Array, ffn, n_layers).slice(),
      heads: this.memory(Float32Array, heads, n_layers * n_heads).slice() };
  }
  // Activation patching of some layers at one position; NaN elsewhere.
  patch({ clean, corrupted, answer, against, off }, layer, n_layers, position) {
    const n_heads = this.c.heads_model_heads(this.model), n = clean.length;
    const out = this.put(new Float32Array(this.shape.n_layers * n_heads * n).fill(NaN));
    const what = this.ints([this.ints(clean), this.ints(corrupted), n, 0, 0, answer, against,
      this.text(off)[0], 0, 0, layer, n_layers, position, 1, ...LATER]);
    this.call(-1, "heads_patch", this.model, this.options_here(), what, out, 0);
    return { n_heads, results: this.memory(Float32Array, out, this.shape.n_layers * n_heads * n).slice() };
  }
  // How a head computes what it gives after the last of ids: heads_head_parts.
  dissect(ids, layer, head, off, steers) {
    const what = this.ints([this.ints(ids), ids.length, layer, head, ids.length - 1,
      this.text(off)[0], ...this.steers(steers), ...LATER]);
    const at = this.call(0, "heads_dissect", this.model, this.options_here(), what);
    const [first, n, kv_layer, kv_head, sharing, n_sharing, dim, v_dim, n_embd, rank, rope, n_rope,
      scale, ...words] = this.memory(Uint32Array, at, 32).slice();
    const floats = (i, size) => words[i] && this.memory(Float32Array, words[i], size).slice();
    const scoring = (i) => ({ q: floats(i, dim), k: floats(i + 1, n * dim), products: floats(i + 2, n),
      scores: floats(i + 3, n), weights: floats(i + 4, n), sink: float_of(words[i + 5]) });
    const parts = { first, n, kv_layer, kv_head, sharing, n_sharing, dim, v_dim, n_embd, rank, rope,
      n_rope, scale: float_of(scale), turned: scoring(0), plain: scoring(6), v: floats(12, n * v_dim),
      mix: floats(13, v_dim), mixed: floats(14, v_dim), out: floats(15, n_embd),
      latents: floats(16, n * rank), q_latent: floats(17, rank), mix_latent: floats(18, rank) };
    this.c.heads_free(at);
    return parts;
  }
  options_here() {  // those of a call that makes a workspace, on this one's threads
    const options = this.options();
    this.memory(Uint32Array, options, 8)[7] = this.workspace;
    return options;
  }
  // For each list of heads the losses of ids[1..] without these, in nats: they run side by side.
  losses(ids, lists) {
    const n = ids.length - 1, tokens = this.ints(ids);
    const losses = this.take(8 * n * lists.length), sequences = [], w = this.workspace;
    try {
      for (const list of lists) {
        sequences.push(this.sequence());
        this.change(sequences.at(-1), list);
      }
      const most = Math.max(1, Math.floor(this.c.heads_workspace_chunk(w) / lists.length));
      for (let from = 0; from < n; from += most) {
        const some = Math.min(most, n - from);
        const runs = sequences.flatMap((one) =>
          [this.of("sequence", one), tokens + 4 * from, some, some]);
        const at = this.call(0, "heads_forward_runs", w, this.ints(runs), lists.length);
        const bytes = 4 * some * this.c.heads_logit_stride(w);
        lists.forEach((_, i) => this.c.token_losses(w, at + bytes * i, tokens + 4 * (from + 1),
          some, losses + 8 * (n * i + from)));
      }
      return lists.map((_, i) => this.memory(Float64Array, losses + 8 * n * i, n).slice());
    } finally {
      for (const sequence of sequences) this.free("sequence", sequence);
    }
  }
  // Bytes of the cache after n tokens, had each layer so many KV heads; 0: as it is.
  kv_bytes(n, n_kv_heads) {
    return n_kv_heads.map((heads) => this.c.inspect_kv_bytes(this.model, heads, n, 0, 0, 0) >>> 0);
  }
  sampler(o) {
    const options = this.ints(this.sampling(options_of("sample", o)));
    return this.hold("sampler", this.make("sampler", this.workspace, options));
  }
  // Pick number i of a sampler with these options, whatever was picked before: a walk back and
  // forth gives the same tokens.
  draw(options, i, logits) {
    const key = JSON.stringify(options);
    if (this.dice?.key !== key || this.dice.n > i) {
      const sampler = this.sampler(options);
      if (this.dice) this.free("sampler", this.dice.sampler);
      this.dice = { key, n: 0, sampler };
    }
    const at = this.put(logits), sampler = this.of("sampler", this.dice.sampler);
    let id;
    for (; this.dice.n <= i; this.dice.n++) id = this.c.heads_sampler_pick(sampler, at);
    return { id, ends: Boolean(this.c.heads_is_eos(this.tokenizer, id)) };
  }
}
kind = Looking;
