"""python -m heads eval MODEL --tasks NAME ..: lm-evaluation-harness with this engine as its model.
The options are `lm-eval run`'s without --model: python -m heads eval MODEL --help has them.
--model_args may say threads, kv, context, parallel and prefix_token_id: --model_args kv=f32"""

from __future__ import annotations

import json
import sys

from lm_eval._cli.harness import HarnessCLI
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, setup_logging
from tqdm import tqdm

from ._batch import BOUNDS, GenerateJob, Sampling, ScoreJob
from ._native import HeadsError, InputError
from .model import Model


@register_model("heads")
class HeadsLM(TemplateLM):
    """path, threads, kv, context: as heads.Model takes them. parallel: texts at a time.
    prefix_token_id: what stands before a text without context, as in the harness's `hf` back end;
    BOS where the tokenizer puts one before a text, else EOS."""

    def __init__(
        self,
        path: str,
        threads: int | None = None,
        kv: str = "f16",
        context: int | None = None,
        parallel: int = 32,
        prefix_token_id: int | None = None,
        batch_size=None,
        max_batch_size=None,
        device=None,
    ):
        super().__init__()
        self.model = Model(path, threads, kv, context, chunk=256)
        self.model._must_have_one_text("the harness")
        self.parallel, self._prefix = parallel, prefix_token_id

    @property
    def eot_token_id(self) -> int:
        return self.model.eos_ids()[0]

    @property
    def prefix_token_id(self) -> int:
        begin = self.model.encode("")
        return self._prefix if self._prefix is not None else (begin or [self.eot_token_id])[0]

    @property
    def tokenizer_name(self) -> str:
        return self.model.path

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "the checkpoint's own" if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict], add_generation_prompt: bool = True):
        ids = self.model.chat_ids(chat_history, answer=add_generation_prompt)
        return self.model.decode(ids, skip_special=False)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> list[int]:
        ids = self.model.encode(string, special=False)
        begin = [] if add_special_tokens is False else self.model.encode("")
        return ids if ids[: len(begin)] == begin else begin + ids  # a template may have written BOS

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, **_):
        jobs = []
        for _, context, continuation in requests:
            ids = [*context, *continuation][-(self.model.context + 1) :]
            jobs.append(ScoreJob(ids, min(len(continuation), len(ids) - 1)))
        self.model._run(jobs, self.parallel, progress=not disable_tqdm)
        scores = [job.score() for job in jobs]
        for (key, _, _), score in zip(requests, scores):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, score)
        return scores

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        windows, owners = [], []
        for owner, request in enumerate(requests):
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.model.context, 1
            ):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        sums = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm)):
            sums[owner] += value
        return sums

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        jobs = [
            self._generation(*request.args)
            for request in tqdm(requests, desc="Tokenizing inputs", disable=disable_tqdm)
        ]
        self.model._run(jobs, self.parallel, progress=not disable_tqdm)
        texts = [str(job.completion()) for job in jobs]
        for request, text in zip(requests, texts):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _generation(self, context: str, gen_kwargs: dict) -> GenerateJob:
        options = normalize_gen_kwargs(gen_kwargs, 256)
        stops = handle_stop_sequences(options.pop("until", None), eos=None)
        most, room = options.pop("max_gen_toks"), self.model.context
        if not 0 < most < room:
            raise InputError(
                f"max_gen_toks is {most} and the context has room for {room} tokens, a prompt's too; "
                f"give --gen_kwargs max_gen_toks=N, with N from 1 to {room - 1}"
            )
        temperature = 1.0 if options.pop("do_sample", False) else 0.0
        unknown = options.keys() - BOUNDS.keys()
        if unknown - {"num_beams"} or options.pop("num_beams", 1) != 1:
            known = ", ".join(["until", "max_gen_toks", "do_sample", *BOUNDS])
            raise InputError(
                f"gen_kwargs: {', '.join(sorted(unknown))} is not supported here; known are {known}"
            )
        sampling = Sampling(**{"temperature": temperature, **options})
        ids = self.tok_encode(context)[-(room - most) :]
        return GenerateJob(self.model, ids, most, sampling, [s.encode() for s in stops if s])


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    path, *rest = arguments
    setup_logging()
    cli = HarnessCLI()
    model = ["--model", "heads", "--model_args", json.dumps({"path": path})]
    sys.argv = ["lm-eval", "run", *model, *rest]
    try:
        cli.execute(cli.parse_args())
    except (HeadsError, ValueError) as error:  # the harness's way to refuse an argument
        print(f"heads: {error}", file=sys.stderr)
        return 1
    return 0
