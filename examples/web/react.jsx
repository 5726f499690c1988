// React: the model opens when the component appears, and an abort ends what runs when it goes.
import { open } from "heads.js";
import { useEffect, useState } from "react";

export function Story({ address, prompt }) {
  const [story, add] = useState(prompt), [done, end] = useState(false);
  useEffect(() => {
    const stop = new AbortController(), { signal } = stop;
    async function tell() {
      const model = await open(address, { signal });
      try {
        add(prompt);
        const options = { temperature: 0.8, top_p: 0.95, seed: 7, max_tokens: 40, signal };
        for await (const { text } of model.generate(prompt, options)) add((told) => told + text);
        end(true);
      } finally {
        model.close();
      }
    }
    tell().catch((error) => { if (!signal.aborted) add(error.message); });
    return () => stop.abort();
  }, [address, prompt]);
  return <p id="story" data-done={done || undefined}>{story}</p>;
}
