// Opens each file named on stdin in build/web/heads.js and runs two tokens; writes what came of it,
// a JSON string or null a line.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const { default: heads } = await import("../../build/web/heads.js");
for await (const path of createInterface({ input: process.stdin })) {
  let said = null;
  try {
    const model = await heads.open(readFileSync(path), { context: 64, chunk: 2 });
    try {
      await model.forward(await model.sequence(), [1, 2]);
    } finally {
      model.close();
    }
  } catch (error) {
    said = ["refused", "memory"].includes(error.code) ? error.message : String(error);
  }
  console.log(JSON.stringify(said));
}
