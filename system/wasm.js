// What WebAssembly needs of a page, of node, Deno or Bun: a module that runs here, and workers: one
// for the engine, and one for each further thread. system/wasm_worker.js is what they run.

const modules = [];  // compiled once for all models, as promises

// The first module that runs here: with threads; without; without relaxed SIMD.
async function module_for_here(with_threads) {
  for (let i = with_threads ? 0 : 1; i < MODULES.length; i++) {
    const module = await (modules[i] ??= compile(MODULES[i]));
    if (module) return module;
  }
  throw new HeadsError("unsupported", "this browser's WebAssembly has no SIMD, which the engine needs");
}

async function compile(packed) {
  const bytes = new Blob([Uint8Array.from(atob(packed), (c) => c.charCodeAt(0))]);
  const unpacked = bytes.stream().pipeThrough(new DecompressionStream("gzip"));
  const module = await new Response(unpacked).arrayBuffer();
  return WebAssembly.validate(module) ? WebAssembly.compile(module) : null;
}

// A page that is not cross-origin isolated has no shared memory, and a browser may refuse it.
function shared_memory() {
  try {
    return new WebAssembly.Memory({ initial: 512, maximum: 65535, shared: true });
  } catch {
    return null;
  }
}

const in_node = typeof Worker === "undefined";  // whose workers are others
const of_node = (name) => globalThis.process.getBuiltinModule("node:" + name);
// Deno cannot end a thread that waits, so there one is made only if it is asked for.
const n_cores = () => (globalThis.Deno ? 1
  : globalThis.navigator?.hardwareConcurrency ?? of_node("os").availableParallelism());

let policy;  // where a page has Trusted Types
function trusted(address) {
  if (typeof address !== "string" || !globalThis.trustedTypes) return address;
  policy ??= globalThis.trustedTypes.createPolicy("heads.js", { createScriptURL: (url) => url });
  return policy.createScriptURL(address);
}

// The workers of one model. What ends one ends all, and is the error of whatever waits.
class Workers {
  all = [];
  waiting = new Map();  // by the number of the call: where its answer goes
  calls = 0;
  gone = null;  // why nothing answers any more

  // n_threads of them, if they may share a memory. The page makes all, since Firefox does not
  // always start those of a worker. script: what follows the worker's own text.
  static async start(n_threads, script, address) {
    const memory = n_threads !== 1 && globalThis.crossOriginIsolated !== false && shared_memory();
    const module = await module_for_here(memory);
    const shared = WebAssembly.Module.imports(module).some(({ name }) => name === "memory");
    const wanted = shared ? n_threads || n_cores() : 1, workers = new Workers();
    const text = WORKER + script;
    const url = address || in_node ? address : URL.createObjectURL(new Blob([text],
      { type: "text/javascript" }));
    const add = async (thread) => {
      const worker = workers.add(text, url, address);
      await workers.call("instantiate", [HASH, module, shared ? memory : null, thread], { worker });
    };
    try {
      await add();
      const threads = [];
      while (workers.all.length < wanted) threads.push(add(await workers.call("thread", [])));
      await Promise.all(threads);
      return workers;
    } catch (error) {
      workers.end(error);
      throw error;
    } finally {
      if (url && !address) URL.revokeObjectURL(url);
    }
  }

  add(text, url, address) {
    let started = false, worker;
    const fail = (error) => this.end(new HeadsError(started ? "crashed" : "worker", started
      ? `the worker stopped: ${error.message}` : "the worker did not start" +
      (address ? ` from ${address}` : ": a Content-Security-Policy must allow worker-src blob:, " +
        "and Trusted Types the policy heads.js; or serve the package's heads-worker.js and give " +
        "its address as workerURL") + (error.message ? ` (${error.message})` : "")));
    const take = (answer) => {
      started = true;
      this.take(answer);
    };
    try {
      if (in_node) {
        const { Worker } = of_node("worker_threads");
        worker = new Worker(url ?? text, { eval: !url });
        worker.on("message", take).on("error", fail);
        worker.unref();
      } else {
        worker = new Worker(trusted(url), { type: globalThis.Deno ? "module" : "classic" });
        worker.onmessage = ({ data }) => take(data);
        worker.onerror = fail;
      }
    } catch (error) {
      fail(error);
      throw this.gone;
    }
    this.all.push(worker);
    return worker;
  }

  // Promises what the method gives. An abort is an error at once; the worker then works for nobody.
  call(name, args, { worker = this.all[0], signal, transfer = [] } = {}) {
    return new Promise((resolve, reject) => {
      if (this.gone) throw this.gone;
      signal?.throwIfAborted();
      const number = ++this.calls, aborted = () => this.take([number, undefined, signal.reason]);
      const done = () => {
        signal?.removeEventListener("abort", aborted);
        this.waiting.delete(number);
        if (!this.waiting.size) this.all[0].unref?.();  // node may end while nothing waits
      };
      signal?.addEventListener("abort", aborted);
      this.waiting.set(number, { resolve, reject, done });
      this.all[0].ref?.();
      try {
        worker.postMessage([number, name, ...args], transfer);
      } catch (error) {
        done();
        throw new HeadsError("argument", `${name}: ${error.message}`);
      }
    });
  }
  take([number, result, error]) {
    const one = this.waiting.get(number), plain = error && !(error instanceof Error);
    const said = plain && error.message ? new HeadsError(error.code, error.message) : error;
    if (plain && error.code === "crashed") return this.end(said);
    one?.done();
    return error === undefined ? one?.resolve(result) : one?.reject(said);
  }
  end(error) {
    this.gone ??= error;
    for (const worker of this.all) worker.terminate();
    for (const one of [...this.waiting.values()]) {
      one.done();
      one.reject(this.gone);
    }
  }
}
