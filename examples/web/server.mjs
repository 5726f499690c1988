// A server in node: GET /?prompt=Once streams a story. One text at a time; a client that leaves ends
// its own.   node server.mjs stories.bin 8000
import { createServer } from "node:http";
import { open } from "heads.js";

const [path, port = "8000"] = process.argv.slice(2);
const model = await open(path);
let turn = Promise.resolve();

const server = createServer((request, response) => {
  const stop = new AbortController();
  const prompt = new URL(request.url, "http://server").searchParams.get("prompt") ?? "Once upon a time";
  response.on("close", () => stop.abort());
  turn = turn.then(async () => {
    const options = { temperature: 0.8, top_p: 0.95, seed: 7, max_tokens: 40, signal: stop.signal };
    for await (const { text } of model.generate(prompt, options)) response.write(text);
    response.end();
  }).catch((error) => response.end(error.message));
});
server.listen(Number(port), () => console.log(`http://localhost:${server.address().port}`));
