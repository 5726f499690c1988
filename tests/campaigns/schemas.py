"""schemas.py N [--seed S] [--model FILE]: texts that keep to N schemas of the JSON Schema test suite.

The suite is what jsonschema's source distribution has; pip downloads it. Each schema that llguidance
knows is given to the model at temperature 1, eight side by side, and each text that ends by itself
must be valid by jsonschema. Texts that the limit cuts off are counted."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import jsonschema  # noqa: E402

import heads  # noqa: E402
from heads import _grammars as grammars  # noqa: E402
from heads._batch import GenerateJob, Sampling  # noqa: E402

DRAFTS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
LIMIT = 150  # tokens of a text


def suite() -> list[tuple[str, object]]:
    """(draft, schema) of all tests. A schema says of which draft it is."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ["--no-deps", "--no-binary", ":all:", f"jsonschema=={version('jsonschema')}"]
        pip = [sys.executable, "-m", "pip", "download", "-q", "-d", folder]
        subprocess.run([*pip, *asked], check=True)
        (path,) = Path(folder).glob("*.tar.gz")
        found = []
        with tarfile.open(path) as tar:
            for name in sorted(tar.getnames()):
                parts = Path(name).parts
                if parts[1:3] == ("json", "tests") and parts[3] in DRAFTS and len(parts) == 5:
                    if name.endswith(".json"):
                        groups = json.load(tar.extractfile(name))
                        found += [(parts[3], group["schema"]) for group in groups]
    for draft, schema in found:
        if isinstance(schema, dict):
            meta = DRAFTS[draft].META_SCHEMA
            schema.setdefault("$schema", meta.get("$id") or meta["id"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=ROOT / "models" / "stories.bin")
    o = parser.parse_args()
    schemas, counts, start = suite(), Counter(), time.monotonic()
    random.Random(o.seed).shuffle(schemas)
    with heads.Model(o.model, context=512) as model:
        jobs, asked = [], []
        for draft, schema in schemas:
            if len(jobs) == o.n:
                break
            try:
                matcher = grammars.matcher(model, grammars.of_schema(schema))
            except heads.InputError:
                counts["refused"] += 1
                continue
            sampling = Sampling(temperature=1, seed=o.seed + len(jobs))
            ids = model.encode(f"{json.dumps(schema)[:200]}\n\nAn example, as JSON:\n")[:300]
            jobs.append(GenerateJob(model, ids, LIMIT, sampling, [], matcher=matcher))
            asked.append((draft, schema))
        model._run(jobs, 8, False)
    for job, (draft, schema) in zip(jobs, asked):
        text = job.bytes.decode()
        if job.stopped != "eos":
            counts["cut off"] += 1
            continue
        errors = list(DRAFTS[draft](schema).iter_errors(json.loads(text)))
        if errors:
            print(f"{json.dumps(schema)}\ngave {text}\n{errors[0].message}", file=sys.stderr)
        counts["wrong" if errors else "valid"] += 1
    said = ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items()))
    print(f"{len(jobs):,} schemas of {len(schemas):,} in {time.monotonic() - start:.0f} s: {said}")
    sys.exit(counts["wrong"] > 0 or not counts["valid"])


if __name__ == "__main__":
    main()
