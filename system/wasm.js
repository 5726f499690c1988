// What WebAssembly needs of a page, or of node: a module that runs here, a clock, and workers: one
// for the engine, and one for each further thread (system/wasm_threads.c).

// The first module that runs here: with threads, which want a page that is cross-origin isolated;
// without; without relaxed SIMD.
const module_for_here = async () => {
  for (const packed of MODULES.slice(globalThis.crossOriginIsolated ? 0 : 1)) {
    const bytes = new Blob([Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))]);
    const unpacked = bytes.stream().pipeThrough(new DecompressionStream("gzip"));
    const module = await new Response(unpacked).arrayBuffer();
    if (WebAssembly.validate(module)) return WebAssembly.compile(module);
  }
};

class Instance {  // of the module, in the thread where it runs
  // One with n_threads, if it may have them. The page makes all workers, since Firefox does not
  // always start those of a worker.
  static async start(n_threads) {
    const module = await module_for_here(), sides = [];
    const shared = WebAssembly.Module.imports(module).some(({ name }) => name === "memory");
    const memory = shared && new WebAssembly.Memory({ initial: 512, maximum: 65535, shared });
    const add = (Kind, thread) => {
      const side = Kind.side();
      sides.push(side);
      return side.call("instantiate", module, memory, thread);
    };
    await add(this);
    const [{ call }] = sides, wanted = shared ? n_threads || navigator.hardwareConcurrency : 1;
    const threads = [];
    while (sides.length < wanted) threads.push(add(Instance, await call("thread")));
    await Promise.all(threads);
    const close = () => sides.forEach((side) => side.close());
    return { call, close, n_threads: sides.length };
  }
  // In a worker, or where there are none, as in node, in this thread: call(name, ..) promises what
  // the method returns.
  static side() {
    const instance = new this(), waiting = [], code = [`onmessage = new ${this.name}().answer;`];
    const closed = new Error("the model was closed");
    if (typeof Worker === "undefined") {
      const close = () => (instance.run = () => Promise.reject(closed));
      return { call: (...message) => instance.run(...message), close };
    }
    for (let kind = this; kind.name; kind = Object.getPrototypeOf(kind)) code.unshift(kind, ";");
    const worker = new Worker(URL.createObjectURL(new Blob(code)));
    let gone = null;  // why nothing answers any more
    const fail = (error) => {
      gone = error;
      waiting.splice(0).forEach((take) => take([0, gone]));
    };
    worker.onerror = ({ message }) => fail(new Error(message));
    worker.onmessage = ({ data }) => waiting.shift()(data);  // answers come in the order of calls
    const call = async (...message) => {
      if (gone) throw gone;
      worker.postMessage(message);
      const [result, error] = await new Promise((take) => waiting.push(take));
      if (error) throw error;
      return result;
    };
    return { call, close() { worker.terminate(); fail(closed); } };
  }
  answer = ({ data }) =>
    this.run(...data).then((result) => postMessage([result]), (error) => postMessage([0, error]));
  async run(name, ...args) { return this[name](...args); }

  // The first instance begins; another becomes a thread: it answers, and then works for ever.
  async instantiate(module, memory, thread) {
    const clock_time_get = (id, precision, at) => {
      const time = BigInt(Math.round(performance.now() * 1e6));
      new DataView(this.c.memory.buffer).setBigInt64(at, time, true);
      return 0;
    };
    this.c = (await WebAssembly.instantiate(module, { env: { memory },
      wasi_snapshot_preview1: { clock_time_get, sched_yield: () => 0 } })).exports;
    if (!thread) return this.c._initialize();
    this.c.__stack_pointer.value = thread;
    postMessage([]);
    this.c.wasm_thread_run(thread);
  }
  thread() { return this.c.wasm_thread_new() >>> 0; }
}
