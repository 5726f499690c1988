"""Rules of generation, from generation_config.json: what a text begins and ends with, and what it
must not hold. Only for encoder-decoders, whose files say it."""

from __future__ import annotations

import os
import re

from ..json_files import read_json
from ..config import Config
from ..tensor import ExportError

# Keys that change nothing here: bookkeeping, and what only beam search reads.
IGNORED = """
    _from_model_config bos_token_id pad_token_id eos_token_id transformers_version use_cache
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
    cache_implementation remove_invalid_values renormalize_logits early_stopping length_penalty
    num_beam_groups diversity_penalty num_return_sequences return_legacy_cache disable_compile
    trust_remote_code _commit_hash do_sample num_beams
    """.split()
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
# Keys that would change a text, each with the values that change nothing.
INERT: dict[str, tuple] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (),
    "guidance_scale": (1,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_decoder_ids": ([],),
    "sequence_bias": (),
    "constraints": (),
    "force_words_ids": (),
    "exponential_decay_length_penalty": (),
    "stop_strings": (),
    "max_time": (),
    "top_h": (),
    "watermarking_config": (),
    "prompt_lookup_num_tokens": (),
    "dola_layers": (),
}
# The first token where no file says it.
START = {"bart": 2, "m2m_100": 2, "mt5": 0, "mvp": 2, "pegasus": 0, "t5": 0, "umt5": 0}


def generation_rules(
    config: dict, family: str, vocab_size: int, values: dict | None
) -> tuple[dict[str, object], list[str]]:
    """Metadata and remarks. `values` are generation_config.json's; None: there is none, and
    config.json's count. Errors: ExportError."""
    alone = values is not None
    c = Config(values if alone else config, "generation_config.json" if alone else "config.json")
    rules = Rules(c, vocab_size)
    meta: dict[str, object] = {}
    start = rules.id("decoder_start_token_id")
    if start is None and alone:
        start = rules.id("bos_token_id")
    if start is None:
        start = rules.of(config, "decoder_start_token_id")
    if start is None and family == "marian":
        start = rules.of(config, "pad_token_id")
    if start is None and family == "mbart":
        start = rules.of(config, "eos_token_id")
    if start is None:
        start = START.get(family)
    if start is None:
        raise ExportError(f"{c.where}: decoder_start_token_id is missing")
    first = rules.id("forced_bos_token_id")
    meta["model.start"] = [start] if first is None else [start, first]
    last = rules.id("forced_eos_token_id")
    if last is not None:
        meta["model.last"] = last
    meta.update(rules.banned())
    meta.update(rules.lengths(config))
    if family == "blenderbot" and not alone:  # whose class has such a rule
        c.default(encoder_no_repeat_ngram_size=3)
    if not c.flag("do_sample", False):
        meta["model.greedy"] = 1
    return meta, rules.remarks()


class Rules:
    def __init__(self, c: Config, vocab_size: int):
        self.c, self.vocab_size = c, vocab_size
        for key, inert in INERT.items():
            value = c.get(key)
            if value is not None and value not in inert:
                raise ExportError(f"{c.where}: {key} is {value!r}, which is not supported")
        c.ignore(*IGNORED, *SAMPLING)

    def of(self, values: dict, key: str) -> int | None:
        inner = Config(values)
        return Rules.checked(inner, key, self.vocab_size)

    def id(self, key: str) -> int | None:
        return Rules.checked(self.c, key, self.vocab_size)

    @staticmethod
    def checked(c: Config, key: str, vocab_size: int) -> int | None:
        value = c.get(key)
        if value is None:
            return None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        c.values = {**c.values, key: value}
        return c.int(key, least=0, most=vocab_size - 1)

    def banned(self) -> dict[str, object]:
        rows = self.c.get("bad_words_ids")
        if rows is None:
            return {}
        ok = isinstance(rows, list) and all(isinstance(row, list) and row for row in rows)
        if not ok or not all(type(i) is int and 0 <= i < self.vocab_size for r in rows for i in r):
            raise ExportError(
                f"{self.c.where}: bad_words_ids is {rows!r}, expected lists of ids below "
                f"{self.vocab_size}"
            )
        if not rows:
            return {}
        begin = [sum(len(row) for row in rows[:i]) for i in range(len(rows) + 1)]
        return {"model.banned": [i for row in rows for i in row], "model.banned.begin": begin}

    def lengths(self, config: dict) -> dict[str, object]:
        """How long a text must and may be, its first tokens included."""
        c, meta = self.c, {}
        least, most = c.int("min_length", 0, least=0), 0
        if c.get("min_new_tokens") is not None:
            least = max(least, 1 + c.int("min_new_tokens", least=0))
        if c.get("max_new_tokens") is not None:
            most = 1 + c.int("max_new_tokens")
        elif c.get("max_length") is not None:
            most = c.int("max_length", least=2)
        if most:
            meta["model.most"] = most
        eos = c.get("eos_token_id", config.get("eos_token_id"))
        eos = eos if isinstance(eos, list) else [] if eos is None else [eos]
        if least > 1 and eos:
            meta["model.least"] = least
            meta["model.eos"] = eos
        if c.get("no_repeat_ngram_size"):
            meta["model.no_repeat"] = c.int("no_repeat_ngram_size")
        return meta

    def remarks(self) -> list[str]:
        c, found = self.c, []
        beams = c.get("num_beams")
        if beams is not None and beams != 1:
            found.append(
                f"{c.where}: num_beams {beams} is ignored: one text is written, not the "
                "best of several"
            )
        if c.get("encoder_no_repeat_ngram_size"):
            n = c.int("encoder_no_repeat_ngram_size")
            found.append(
                f"{c.where}: encoder_no_repeat_ngram_size {n} is left out: a text may repeat {n} "
                "tokens of its source in their order"
            )
        chance = [key for key in SAMPLING if c.get(key) is not None]
        if c.flag("do_sample", False) and chance:
            found.append(
                f"{c.where}: do_sample is true; {', '.join(chance)} are for the command line to say"
            )
        if c.where == "generation_config.json":
            unknown = [key for key in c.values if c.values[key] is not None and key not in c.asked]
            if unknown:
                raise ExportError(
                    f"{c.where}: {unknown[0]} ({c.values[unknown[0]]!r}) is unknown, and ignoring "
                    "it could give other texts; remove the key if it changes nothing"
                )
        return found


# How the tokens of languages are written.
LANGUAGES = {
    "m2m_100": r"__[a-z]{2,4}__|[a-z]{3}_[A-Z][a-z]{3}",
    "mbart": r"[a-z]{2}_[A-Z]{2}",
}


def languages(family: str, tokenizer: dict[str, object], vocab_size: int) -> dict[str, object]:
    """Metadata of the languages that a family's tokenizer has tokens for."""
    if family not in LANGUAGES:
        return {}
    begin, text = tokenizer["tokenizer.token.begin"], bytes(tokenizer["tokenizer.token.text"])
    pattern = re.compile(LANGUAGES[family].encode())
    found = [
        id
        for id in range(min(len(begin) - 1, vocab_size))
        if pattern.fullmatch(text, begin[id], begin[id + 1])
    ]
    return {"model.languages": found} if found else {}


def read_values(directory: str) -> dict | None:
    path = os.path.join(directory, "generation_config.json")
    return read_json(path) if os.path.exists(path) else None
