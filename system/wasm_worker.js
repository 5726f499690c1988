// What WebAssembly needs in a worker: an instance of the module, whose methods the page calls by
// messages, or one of its further threads (system/wasm_threads.c). This text is made when the
// package is built, and no bundler changes it.

const port = typeof postMessage === "function" ? globalThis
  : require("node:worker_threads").parentPort;

// What of an error can be sent. After a trap a lock may be held, so nothing can run any more.
function report(error) {
  if (error instanceof HeadsError) return { code: error.code, message: error.message };
  const message = String(error?.message ?? error);
  if (!(error instanceof WebAssembly.RuntimeError) && !/call stack|recursion/.test(message)) {
    return { code: "failed", message };
  }
  return { code: "crashed", message: `the engine stopped (${message}): its memory was full, or it ` +
    "has a fault; open the model again" };
}

class Instance {  // of the module
  taken = [];  // memory that is freed when no call runs
  running = 0;

  async answer([number, name, ...args]) {
    try {
      port.postMessage([number, await this.run(name, ...args)]);
    } catch (error) {
      port.postMessage([number, undefined, report(error)]);
    }
  }
  async run(name, ...args) {
    if (!this.running++) for (const at of this.taken.splice(0)) this.c.heads_free(at);
    try {
      return await this[name](...args);
    } finally {
      this.running--;
    }
  }

  // The first instance begins; another becomes a thread: it answers, and then works for ever.
  async instantiate(hash, module, memory, thread) {
    if (hash !== HASH) {
      throw new HeadsError("worker", `the worker is ${HASH}, and this page needs ${hash}: serve ` +
        "the heads-worker.js of the same package");
    }
    const clock_time_get = (id, precision, at) => {
      const time = BigInt(Math.round(performance.now() * 1e6));
      new DataView(this.c.memory.buffer).setBigInt64(at, time, true);
      return 0;
    };
    this.c = (await WebAssembly.instantiate(module, { env: { memory },
      wasi_snapshot_preview1: { clock_time_get, sched_yield: () => 0 } })).exports;
    if (!thread) return this.c._initialize();
    this.c.__stack_pointer.value = thread;
    setTimeout(() => {
      try {
        this.c.wasm_thread_run(thread);
      } catch (error) {
        port.postMessage([0, undefined, report(error)]);
      }
    });
  }
  thread() {
    const thread = this.c.wasm_thread_new() >>> 0;
    if (!thread) throw new HeadsError("memory", "no memory for a thread");
    return thread;
  }
}

let kind = Instance;  // the class that answers; a script behind this one may put in a larger one
let instance;
port.onmessage = ({ data }) => (instance ??= new kind()).answer(data);
port.onmessageerror = () =>
  port.postMessage([0, undefined, { code: "crashed", message: "a message could not be read" }]);
