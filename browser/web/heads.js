// open(source, options) gives a model: the methods of Engine (engine.js), each of which gives a
// promise, and generate. heads.d.ts says what each takes.

let opened = 0;  // models so far, whose handles differ

async function open(source, options = {}) {
  const { kind = "", workerURL, progress, signal, cache, Template, ...asked } = options ?? {};
  signal?.throwIfAborted();
  if (kind && workerURL) {
    throw new HeadsError("argument", "kind: put it behind the worker's own text, at workerURL");
  }
  const { n_threads } = asked, begun = performance.now();
  if (n_threads !== undefined && !(Number.isInteger(n_threads) && n_threads >= 0)) {
    throw new HeadsError("argument", `n_threads: expected a whole number, found ${n_threads}`);
  }
  const found = await source_of(source, { signal, cache });
  const workers = await Workers.start(n_threads, kind, workerURL);
  const call = (name, args, more) => workers.call(name, args, more);
  const seconds = () => (performance.now() - begun) / 1000, cached = Boolean(found.cached);
  try {
    const bytes = await load(found, (name, args, more) => call(name, args, { signal, ...more }),
      (bytes, total) => progress?.({ bytes, total, seconds: seconds(), cached }));
    const threads = workers.all.length;
    const { shape, methods } = await call("opened",
      [2 ** 32 * ++opened, { ...asked, n_threads: threads }], { signal });
    return model_of(call, methods, new Templates(call, Template), {
      shape, source: { bytes, seconds: seconds(), cached },
      close: () => workers.end(new HeadsError("closed", "the model was closed")) });
  } catch (error) {
    workers.end(error);
    throw error;
  }
}

function model_of(call, methods, templates, model) {
  // Any call takes { signal } among its options, which come last.
  for (const name of methods) {
    model[name] = (...args) => {
      const last = args.at(-1);
      if (!last || typeof last !== "object" || !("signal" in last)) return call(name, args);
      const { signal, ...rest } = last;
      return call(name, [...args.slice(0, -1), rest], { signal });
    };
  }
  const text_of = (name, prompt, options, more) => (typeof prompt?.[0] === "object"
    ? templates.write(name, prompt, options, more) : undefined);
  model.conversation = async (messages, options) => {
    const { signal, ...asked } = options ?? {};
    const text = await text_of("conversation", messages, asked, { signal });
    return call("conversation", [messages, asked, text], { signal });
  };
  // { id, text } of each token; returns why it ended. Who leaves it ends the text.
  model.generate = async function* generate(prompt, options) {
    const { signal, ...asked } = options ?? {};
    const text = await text_of("generate", prompt, asked, { signal });
    const number = await call("begin", [prompt, asked, text], { signal });
    try {
      for (;;) {
        for (const event of await call("next", [number], { signal })) {
          if (event.stopped) return event.stopped;
          yield event;
        }
      }
    } finally {
      call("cancel", [number]).catch(() => {});
    }
  };
  if (Symbol.asyncDispose) model[Symbol.asyncDispose] = async () => model.close();
  return model;
}
