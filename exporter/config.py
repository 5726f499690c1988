"""A config.json that is asked for its values one by one; a field that nobody asked for is
refused by name."""

from __future__ import annotations

import contextlib

from .tensor import ExportError

# Keys that any config.json may hold and that say nothing about what the weights compute:
# bookkeeping, training, sampling, classification heads.
BOILERPLATE = set(
    """
    architectures model_type torch_dtype dtype transformers_version _name_or_path _commit_hash
    auto_map use_cache _attn_implementation attn_implementation _attn_implementation_autoset
    use_flash_attention is_llama_config transformers.js_config unsloth_fixed unsloth_version
    gradient_checkpointing bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id
    unk_token_id decoder_start_token_id initializer_range pretraining_tp attention_dropout
    hidden_dropout attn_pdrop embd_pdrop resid_pdrop dropout classifier_dropout embd_dropout
    torchscript use_bfloat16 tf_legacy_loss output_attentions output_hidden_states output_scores
    return_dict return_dict_in_generate task_specific_params finetuning_task problem_type id2label
    label2id num_labels _num_labels tokenizer_class prefix chunk_size_feed_forward pruned_heads
    tie_encoder_decoder temperature top_k top_p typical_p do_sample max_length min_length
    max_new_tokens num_beams num_beam_groups num_return_sequences diversity_penalty early_stopping
    length_penalty repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    exponential_decay_length_penalty remove_invalid_values suppress_tokens begin_suppress_tokens
    bad_words_ids forced_bos_token_id forced_eos_token_id cache_implementation embedding_dropout
    residual_dropout layerdrop activation_dropout is_decoder resid_dropout emb_pdrop embed_dropout
    init_std init_device
    """.split()
)
# Keys of other programs, which transformers passes over; a remark says so.
FOREIGN = {"finetuned", "model_max_length", "onnx", "use_mup"}


def shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."


class Config:
    """The values of a config.json or of an object in it. `where` names it in messages. All errors
    are ExportError."""

    def __init__(self, values: dict, where: str = "config.json"):
        self.values, self.where, self.asked, self.defaults = values, where, set(), {}
        self.last = None  # the key that was asked for last
        self.remarks: list[str] = []  # for the user

    def default(self, **values) -> None:
        """The values of absent keys, unless a call of `get` or its kin says otherwise; the first
        call counts."""
        self.defaults = {**values, **self.defaults}

    def get(self, key: str, default=None):
        """The value; `default` if the key is absent, None if it is null."""
        self.asked.add(key)
        self.last = key
        return self.values.get(key, self.defaults.get(key, default))

    def int(self, key: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
        """A whole number from `least` to `most`, which by default is the largest size that the
        engine takes. Without a default, or with null, the key is required."""
        value = self.get(key, default)
        if value is None:
            raise ExportError(f"{self.where} lacks {key}, which this family needs")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ExportError(
                f"{self.where}: {key} is {value!r}, expected a whole number from {least} to {most}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(key, default)
        if value is None:
            raise ExportError(f"{self.where} lacks {key}, which this family needs")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e38:
            raise ExportError(f"{self.where}: {key} is {value!r}, expected a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as false."""
        value = self.get(key, default)
        if not isinstance(value, (bool, type(None))):
            raise ExportError(f"{self.where}: {key} is {value!r}, expected true or false")
        return bool(value)

    def list(self, key: str, default=None):
        """A list, or None."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, list):
            raise ExportError(f"{self.where}: {key} is {value!r}, expected a list")
        return value

    def object(self, key: str) -> dict:
        """An object; an empty one for null, and if there is none."""
        value = self.get(key) or {}
        if not isinstance(value, dict):
            raise ExportError(f"{self.where}: {key} is {value!r}, expected an object")
        return value

    def choice(self, key: str, choices: dict, default=None):
        """choices[value], for a value that is a key of choices."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise ExportError(
                f"{self.where}: {key} is {value!r}, which is not supported; supported: "
                f"{', '.join(choices)}"
            )
        return choices[value]

    def require(self, **only) -> None:
        """Refuses any other value of these keys than the one given, null, and none at all."""
        for key, supported in only.items():
            value = self.get(key)
            same = value == supported and isinstance(value, bool) == isinstance(supported, bool)
            if value is not None and not same:
                hint = "" if supported is None else f"; supported: {supported!r}"
                raise ExportError(f"{self.where}: {key} is {value!r}, which is not supported{hint}")

    def ignore(self, *keys: str) -> None:
        """Keys that change nothing here, for a reason that the caller knows."""
        self.asked.update(keys)

    @contextlib.contextmanager
    def odd_values(self):
        """What a value of an odd form makes fail inside becomes a sentence about the value that was
        read last."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ExportError(
                f"{self.where}: {self.last} ({shown(self.values.get(self.last))}), or a value that "
                f"goes with it, has not the form that this family reads: {error}"
            ) from error

    def pass_over(self, *keys: str) -> None:
        """Keys that people take to mean something and transformers passes over; with a remark."""
        self.ignore(*keys)
        for key in keys:
            if self.values.get(key) not in (None, False):
                self.remarks.append(
                    f"{self.where}: {key} ({shown(self.values[key])}) is left out, as by "
                    "transformers"
                )

    def finish(self) -> None:
        """Refuses a key that nobody asked for, unless it is null or boilerplate."""
        self.pass_over(*sorted(FOREIGN & set(self.values) - self.asked))
        for key, value in self.values.items():
            if value is not None and key not in self.asked and key not in BOILERPLATE:
                raise ExportError(
                    f"{self.where}: {key} ({shown(value)}) is unknown for this family, and ignoring it "
                    "could give a "
                    "different model; remove the key if it changes nothing"
                )
