// Opens each file named on stdin in build/web/heads.js and runs two tokens; writes what came of it,
// a JSON string or null a line.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

await import("../../build/web/heads.js");
for await (const path of createInterface({ input: process.stdin })) {
  let said = null;
  try {
    const model = await heads.open(readFileSync(path), { context: 64, chunk: 2 });
    const sequence = await model.sequence();
    await model.forward(sequence, [1, 2]);
  } catch (error) {
    said = `${error.constructor.name}: ${error.message}`;
  }
  console.log(JSON.stringify(said));
}
