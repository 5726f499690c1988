// heads.js: transformers in a page, in node, Deno and Bun.

export type Bytes = ArrayBuffer | ArrayBufferView;
/** An address may be relative to the page, or in node a path. */
export type Source = Blob | Bytes | Response | ReadableStream<Uint8Array> | URL | string;

export interface Progress {
  bytes: number;
  total: number;
  seconds: number;
  /** They come from the browser's cache. */
  cached: boolean;
}

export interface Signalled {
  /** An abort rejects with its reason, at once. */
  signal?: AbortSignal;
}

export type KvType = "f16" | "f32" | "q8" | "q4";

export interface OpenOptions extends Signalled {
  progress?: (progress: Progress) => void;
  /** Keep what an address gives in the Cache API, as "heads.c", by its ETag; true. */
  cache?: boolean;
  /** Positions of a text; the model's, at most 8192. */
  context?: number;
  /** Most tokens of a pass; 128. */
  chunk?: number;
  /** The processor's cores, where memory can be shared; else 1. */
  n_threads?: number;
  /** Most rows of logits of a call; chunk. */
  logit_rows?: number;
  /** Of cached keys, and of cached values; "f16". */
  k_type?: KvType;
  v_type?: KvType;
  /** Kernels: "scalar", "wasm", "wasm-relaxed" ..; the best. */
  isa?: string;
  /** Passes give hidden states instead of logits. */
  hidden?: boolean;
  /** Where the package's heads-worker.js is, for pages that forbid workers from blob:. */
  workerURL?: string | URL;
  /** `Template` of @huggingface/jinja, which writes conversations with tools and efforts. */
  Template?: new (text: string) => { render(told: Record<string, unknown>): string };
  /** A script, as text, that gives the worker more methods: `kind = class extends Engine {..};` */
  kind?: string;
  /** What such a kind takes. */
  [option: string]: unknown;
}

export interface Sampling {
  /** 0: the most likely token. These default to ./run's. */
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  repeat_penalty?: number;
  repeat_last?: number;
  frequency_penalty?: number;
  presence_penalty?: number;
  /** The same seed gives the same text; 0. */
  seed?: number | bigint;
}

export interface ConversationOptions extends Signalled {
  /** Thinking is switched off, where the template can. */
  no_think?: boolean | 0 | 1;
  /** How long it thinks, where the template knows of that. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max";
  /** What may be called. It needs `Template`, as messages with calls do. */
  tools?: Tool[];
}

export interface Tool {
  type: "function";
  /** parameters: a JSON schema. */
  function: { name: string; description?: string; parameters?: Record<string, unknown> };
}

export interface ToolCall {
  id: string;
  type: "function";
  /** arguments: an object, as JSON. */
  function: { name: string; arguments: string };
}

export interface GenerateOptions extends Sampling, ConversationOptions {
  /** 256. */
  max_tokens?: number;
  stop?: string | string[];
  /** Of encoder-decoders: the language to write, or FROM:TO. */
  lang?: string;
  /** Tokens come with their log-probability and the so many likeliest in their place. */
  top_logprobs?: number;
}

/** What somebody said: an assistant perhaps with thoughts and calls, a tool in answer to one. */
export type Message =
  | { role: "system" | "user"; content: string }
  | { role: "assistant"; content?: string | null; reasoning_content?: string | null;
      tool_calls?: ToolCall[] | null }
  | { role: "tool"; content: string; tool_call_id?: string; name?: string };

export interface Likely {
  id: number;
  /** The natural logarithm. */
  log_probability: number;
}

export interface Token {
  /** -1: what was held back of an answer, at its end. */
  id: number;
  /** What it adds to the text, of an answer to what is said: whole characters. */
  text: string;
  /** And to the thoughts of an answer. */
  reasoning_content?: string;
  /** Calls of tools, each when it is whole. */
  tool_calls?: ToolCall[];
  /** With top_logprobs. */
  log_probability?: number;
  top?: Likely[];
}

export type Stopped = "eos" | "max_tokens" | "stop" | "context" | "tool_calls";
export type Ids = number[] | Int32Array;
export type Handle = number;

export interface Shape {
  n_threads: number;
  vocab_size: number;
  n_embd: number;
  n_layers: number;
  context: number;
  weight_bytes: number;
  encoder: number;
  source_vocab: number;
  greedy: number;
  target_ids: number;
  vector: number;
  n_labels: number;
  token_classes: number;
  token_vectors: number;
  most_read: number;
}

export interface AttentionRow {
  layer: number;
  head: number;
  position: number;
  /** It attends to positions first .. first + weights.length - 1. */
  first: number;
  of_source: number;
  sink: number;
  weights: Float32Array;
}

export interface LensRow {
  layer: number;
  position: number;
  logits: Float32Array;
}

export interface ForwardOptions extends Signalled {
  /** After how many of the last tokens logits are wanted; 1. */
  rows?: number;
  /** What each head looked at. */
  attention?: boolean;
  /** What each layer would say. */
  lens?: boolean;
}

export interface Forward {
  logits: Float32Array[];
  attention: AttentionRow[];
  lens: LensRow[];
}

export interface Label {
  label: string;
  score: number;
}

export interface Ranked {
  index: number;
  score: number;
}

export interface Model {
  readonly shape: Shape;
  /** What opening took. */
  readonly source: { bytes: number; seconds: number; cached: boolean };
  /** The tokens of a text that goes on from a prompt, of an answer to messages, or of a
   *  translation. It ends an earlier one; leaving the loop ends it. */
  generate(prompt: string | Ids | Message[], options?: GenerateOptions):
    AsyncGenerator<Token, Stopped, undefined>;
  tokenize(text: string, special?: boolean, options?: Signalled): Promise<Int32Array>;
  decode(ids: Ids, options?: Signalled): Promise<string>;
  /** The ids of a conversation, up to where an answer begins. */
  conversation(messages: Message[], options?: ConversationOptions): Promise<Int32Array>;
  /** A vector for each text; of a model with vectors of tokens, a list for each. */
  embed(texts: string[], options?: Signalled): Promise<Float32Array[] | Float32Array[][]>;
  /** The classes of each text, or pair of texts, the likeliest first; where they are tokens'
   *  classes, the likeliest of each token. */
  classify(texts: (string | [string, string])[], options?: Signalled):
    Promise<Label[][]>;
  /** The documents by their scores beside a query, the best first. */
  rank(query: string, documents: string[], options?: Signalled): Promise<Ranked[]>;
  labels(options?: Signalled): Promise<string[]>;
  /** Runs an experiment (docs/heads.md): its result, with a SHA-256 that each machine gives. */
  experiment(described: Record<string, unknown>, options?: Signalled):
    Promise<Record<string, unknown>>;
  /** Runs the experiment of a result again. null: it holds; else what differs first. */
  verify(result: Record<string, unknown>, options?: Signalled): Promise<string | null>;
  /** A text and its cache, for forward; free("sequence", it) frees it. */
  sequence(options?: Signalled): Promise<Handle>;
  rewind(sequence: Handle, n: number, options?: Signalled): Promise<void>;
  forward(sequence: Handle, ids: Ids, options?: ForwardOptions): Promise<Forward>;
  free(kind: "sequence", handle: Handle, options?: Signalled): Promise<void>;
  /** Ends the workers and frees all memory; what waits rejects. */
  close(): void;
  [Symbol.asyncDispose]?(): Promise<void>;
}

/** What rejects. An abort rejects with its own reason instead. */
export class HeadsError extends Error {
  constructor(code: HeadsError["code"], message: string, options?: { cause?: unknown });
  readonly code:
    /** what was given is not what the message asks for */
    | "argument"
    /** the engine refuses: the file, or what was asked of it; the message is its own */
    | "refused"
    /** the 4 GiB of WebAssembly, or what the system has */
    | "memory"
    /** the address did not give the file */
    | "network"
    /** no worker could be started */
    | "worker"
    /** the engine stopped: nothing runs any more */
    | "crashed"
    | "closed"
    /** the handle is none, or was freed */
    | "freed"
    /** another text has begun */
    | "replaced"
    /** what a page cannot do */
    | "unsupported"
    /** a kind's own method failed */
    | "failed";
}

export function open(source: Source, options?: OpenOptions): Promise<Model>;
