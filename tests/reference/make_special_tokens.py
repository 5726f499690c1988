"""Writes tests/golden/special_tokens.json: what AutoTokenizer makes of the cases of
tests/support/special_tokens.py. Needs transformers, not torch.

    python3 tests/reference/make_special_tokens.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import special_tokens  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402


def answer(case: str) -> dict:
    """The ids of the texts, what they decode to without special tokens, and the id of EOS."""
    with tempfile.TemporaryDirectory() as directory:
        special_tokens.write(case, Path(directory))
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        ids = [tokenizer(text)["input_ids"] for text in special_tokens.TEXTS]
        texts = [tokenizer.decode(i, skip_special_tokens=True) for i in ids]
        return {"ids": ids, "texts": texts, "eos": tokenizer.eos_token_id}


def main() -> None:
    versions = f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}"
    made_by = json.dumps(f"{versions}; python3 tests/reference/make_special_tokens.py")
    answers = {case: answer(case) for case in special_tokens.CASES}
    rows = ",\n".join(f"{json.dumps(case)}: {json.dumps(a)}" for case, a in answers.items())
    path = ROOT / "tests" / "golden" / "special_tokens.json"
    path.write_text(f'{{"made by": {made_by}, "cases": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
