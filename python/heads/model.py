"""A model, and what one can ask it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from ctypes import byref
from functools import partial
from typing import Any, Dict, Literal, overload

import numpy as np
from numpy.typing import NDArray

from . import _adapters as adapters
from . import _arguments as arguments
from . import _classes as classes
from . import _experiments as experiments
from . import _html as html
from . import _looking as looking
from . import _steering as steering
from . import _vectors as vectors
from ._adapters import Adapter
from ._arguments import Failed, Floats, Prompt
from ._attention import Attention, attention
from ._batch import ScoreJob
from ._classes import Label, Ranked
from ._experiments import Attribution, HeadParts
from ._native import InputError, KvPlan, calls
from ._public import own
from ._reading import Pair
from ._steering import Steering
from ._writer import Writer, made
from .session import Session


class Kv(Dict[str, int]):
    """What Model.kv says; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        rows = {
            "each token": self["bytes_per_token"],
            "state, whatever the length": self["state"],
            f"a context of {self['context']} tokens": self["reserved"],
        }
        return html.table((name, html.in_bytes(n)) for name, n in rows.items())


@own
class Model(Writer):
    """A checkpoint that `heads.export` or export.py made, mapped, with threads to run it on.

    threads: the physical cores that this process may use, or OMP_NUM_THREADS. kv: the type of the
    cached keys and values, "f16", "f32", "q8" or "q4", or a pair of them. context: positions of
    each text; the model's. chunk: most tokens of a pass. isa: kernels ("scalar", "avx2", ..); the
    best. lookup: most guesses of a pass at the next tokens, from what followed the same words
    before, as ./run --lookup; draft: a smaller checkpoint with the same tokens that guesses them,
    as -md; guess: most guesses of a pass by layers that the model has for it, as --guess (3 if it
    has some and nothing else guesses). No text depends on guesses.

    Any number of threads may use it; they take turns, a pass each. It can be pickled (as its path
    and options) and used after a fork(), where it opens the file again. `with` or close() frees it.
    What a text gives has the bits of ./run. Errors are a HeadsError with the engine's sentence:
    FileError (the checkpoint), ContextError (too long a text), InputError (what is refused).
    """

    # ---- what it says of texts that are given ----

    def score(
        self,
        contexts: Sequence[Prompt],
        continuations: Sequence[Prompt],
        parallel: int = 16,
        progress: bool = False,
        lang: str | Sequence[str | None] | None = None,
        failed: Failed | None = None,
        adapter: Adapter | None = None,
    ) -> list[tuple[float, bool]]:
        """For each pair, the natural logarithm of the probability of the continuation after its
        context, and whether each of its tokens was the most likely one. Contexts that begin alike
        are run once. Texts are cut into tokens together; ids are taken as they are.

        An encoder-decoder reads the context, and the continuation is what it writes, after the
        tokens that its texts begin with; no token is put after it. lang, failed: as in generate; a
        pair that failed has NaN and False. adapter: of all of them."""
        self._must_continue()
        pairs = arguments.pairs("contexts", contexts, "continuations", continuations)
        parallel = arguments.whole("parallel", parallel, 1)
        progress = arguments.flag("progress", progress)
        failed = arguments.failed(failed)
        with_codes = arguments.with_languages(pairs, lang)
        adapted = adapters.of(self, adapter)
        jobs = made((partial(self._score_job, *pair, code) for pair, code in with_codes), failed)
        for job in jobs:
            if job:
                job.adapted = adapted
        self._run(jobs, parallel, progress, failed)
        return [job.score() if job else ScoreJob.FAILED for job in jobs]

    def _score_job(self, context: Prompt, continuation: Prompt, lang: str | None) -> ScoreJob:
        if not self.shape.source_vocab and not arguments.language(lang):
            return ScoreJob(*self._pair(context, continuation))
        start, source = self._begin(self._ids("contexts", context), lang)
        ids = self._target("continuations", continuation)
        if not ids:
            raise InputError("score: a continuation has at least one token")
        self._check_prompt(start + ids[:-1])
        self._check_prompt(ids[-1:])
        return ScoreJob(start + ids, len(ids), source=source)

    def _pair(self, context: Prompt, continuation: Prompt) -> tuple[list[int], int]:
        """The ids of both, and how many of them are the continuation's."""
        if isinstance(context, str) and isinstance(continuation, str):
            begin = self._encoded("contexts", context.rstrip())  # the space is the next token's
            arguments.utf8("continuations", continuation)
            ids = self.encode(context + continuation)
        elif isinstance(context, str) or isinstance(continuation, str):
            raise InputError(
                "score: contexts and continuations are both texts or both ids, each with its own"
            )
        else:
            begin = arguments.id_list("contexts", context)
            ids = begin + arguments.id_list("continuations", continuation)
        if not begin or len(ids) <= len(begin):
            raise InputError("score: a context and a continuation have at least one token each")
        self._check_prompt(ids[:-1])
        self._check_prompt(ids[-1:])
        return ids, len(ids) - len(begin)

    def logits(
        self,
        ids: Prompt,
        source: Prompt | None = None,
        lang: str | None = None,
        adapter: Adapter | None = None,
    ) -> Floats:
        """float32 [tokens][vocab_size]: row i is what the model expects after token i. source,
        lang, adapter: as in session."""
        with self.session(source=source, lang=lang, adapter=adapter) as session:
            return session.feed(ids, all_rows=True)

    def perplexity(self, text: str, adapter: Adapter | None = None) -> float:
        """As ./run --ppl: in windows of the context, each begun with the tokenizer's BOS.
        adapter: as in session."""
        self._must_have_one_text("perplexity")
        begin, ids = self.encode(""), self._encoded("text", text, special=False)
        size = self.context - len(begin)
        windows = [begin + ids[at : at + size] for at in range(0, len(ids), size)]
        jobs = [
            ScoreJob(w, len(w) - max(1, len(begin))) for w in windows if len(w) > max(1, len(begin))
        ]
        if not jobs:
            raise InputError("perplexity: at least two tokens are needed")
        adapted = adapters.of(self, adapter)
        for job in jobs:
            job.adapted = adapted
        self._run(jobs, 1, False)
        scores = [x for job in jobs for x in job.log_probabilities]
        return float(np.exp(-np.mean(scores)))

    def attention(
        self,
        text: Prompt,
        max_bytes: int = 1 << 30,
        source: Prompt | None = None,
        lang: str | None = None,
        adapter: Adapter | None = None,
    ) -> Attention:
        """What each token of a text, or of ids, looks at in every head: see Attention. The weights
        are as in ./run --heads, and take 4 n_layers n_heads n^2 bytes for n tokens. source,
        lang, adapter: as in session; a text then begins as the model's texts do, and ids with the
        first token. Errors: more than max_bytes."""
        self._must_fit_source(source)
        max_bytes = arguments.whole("max_bytes", max_bytes, 0, 2**63 - 1)
        start, read = self._begin([] if source is None else self._ids("source", source), lang)
        if isinstance(text, str):
            one = source is None
            text = self._encoded("text", text) if one else start + self._target("text", text)
        ids = arguments.id_list("text", text)
        self._check_prompt(ids)
        with adapters.turn(self, adapter) as opened:
            return attention(self, opened.workspace, read or [], ids, max_bytes)

    def probs(
        self,
        text: Prompt,
        k: int = 5,
        source: Prompt | None = None,
        lang: str | None = None,
        off: str | None = None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> list[list[tuple[int, float]]]:
        """The k likeliest next tokens after each token of a text, or of ids: [tokens][k] of id and
        probability, the likeliest first, as ./run -n 0 --probs K. source, lang, off, steer,
        adapter: as in session."""
        k = arguments.whole("k", k, 1, self.shape.vocab_size)
        with closing(self.session(None, source, lang, off, steer, adapter)) as session:
            return looking.likeliest(self, session, session._ids(text), k)

    def lens(
        self,
        text: Prompt,
        max_bytes: int = 1 << 30,
        source: Prompt | None = None,
        lang: str | None = None,
        off: str | None = None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> Floats:
        """What each layer would say after each token of a text, or of ids: logits, float32
        [tokens][n_layers][vocab_size], the stream after the layer through the last norm and the
        output (the logit lens). The last layer's are as in Session.feed. source, lang, off,
        steer, adapter: as in session; of an encoder-decoder the layers are the decoder's. Errors: more
        than max_bytes."""
        max_bytes = arguments.whole("max_bytes", max_bytes, 0, 2**63 - 1)
        with closing(self.session(None, source, lang, off, steer, adapter)) as session:
            return looking.lens(self, session, session._ids(text), max_bytes)

    # ---- adapters and steering ----

    def adapter(self, path: str | os.PathLike[str]) -> Adapter:
        """The adapter (LoRA) in a file of export.py --adapter DIR FILE --for MODEL, for the
        `adapter` of generate, chat, session and others; texts that have another, or none, run
        beside it. `with` or close() frees it. Errors: of another model, damaged."""
        return adapters.read(self, path)

    def direction(
        self,
        positive: Iterable[Prompt],
        negative: Iterable[Prompt],
        layer: int | Iterable[int],
    ) -> Steering:
        """What the residual stream after a layer, or after each of several, has more of in some
        texts than in others: the difference of the means at the texts' last tokens (contrastive
        activation addition: Rimsky et al. 2023, arXiv 2312.06681). Texts, or ids, come in any
        number; pairs that differ in one thing alone are best. Layers count from 0; after the
        last one there is nothing to steer but the output. Errors: no such layer."""
        self._must_have_one_text("direction")
        most = self.shape.n_layers - 2
        several = [layer] if isinstance(layer, (int, np.integer)) else list(layer)
        layers = [arguments.whole("layer", one, 0, most) for one in several]
        return steering.direction(self, positive, negative, layers)

    def steering(self, path: str | os.PathLike[str]) -> Steering:
        """The control vectors of a GGUF file, as repeng, llama.cpp and Steering.save write them:
        direction.N for after layer N, counted from 0. Errors: of another model, damaged."""
        return steering.read(self, path)

    # ---- experiments ----

    def patch(
        self,
        clean: Prompt,
        corrupted: Prompt,
        answer: int | str | None = None,
        against: int | str | None = None,
        of: Literal["heads", "layers"] = "heads",
        metric: Literal["difference", "log_probability", "kl"] = "difference",
        off: str | None = None,
        progress: bool = False,
        adapter: Adapter | None = None,
    ) -> Floats:
        """Activation patching: runs of the corrupted text, in each of which one activation is the
        clean text's. The texts, or ids, have equally many tokens. float32
        [n_layers][heads][tokens]: what one head gives, before the output matrix, at one position;
        NaN where a layer has fewer heads. of="layers": [n_layers][tokens], the residual stream
        before the layer.

        metric, after the last token: "difference", the logit of `answer` minus the logit of
        `against`, each an id or a text of one token; "log_probability" of answer; "kl",
        KL(clean || patched), in nats. off, adapter: as in session. progress: a bar on stderr (needs tqdm).
        As ./run --patch."""
        self._must_have_one_text("patching")
        progress = arguments.flag("progress", progress)
        ids = experiments.two_texts(self, clean, corrupted)
        return experiments.patch(self, ids, answer, against, of, metric, off, progress, adapter)[0]

    def attribute(
        self,
        text: Prompt,
        answer: int | str,
        against: int | str | None = None,
        off: str | None = None,
        adapter: Adapter | None = None,
    ) -> Attribution:
        """Direct logit attribution: what each head and each layer's network add to the logit of
        `answer` after a text, or ids, less the logit of `against`; both ids or texts of a token.
        The last norm's scale is held as it is. See Attribution; off, adapter: as in session; as
        ./run --attribute. Errors: models whose logits are no such sum, such as post-norm ones."""
        self._must_have_one_text("attribution")
        return experiments.attribute(self, self._ids("text", text), answer, against, off, adapter)

    def parts(
        self,
        text: Prompt,
        layer: int,
        head: int,
        position: int | None = None,
        off: str | None = None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> HeadParts:
        """What one attention head computes for one token of a text, or of ids (none: the last):
        query, keys, products, scores, weights, values, their mix, and what that adds to the output
        matrix's result; with rope and without. See HeadParts; off, steer, adapter: as in session;
        as ./run --parts. Errors: an encoder-decoder, no such head, a layer without attention."""
        ids = self._ids("text", text)
        return experiments.parts(self, ids, layer, head, position, off, steer, adapter)

    def experiment(
        self,
        described: Mapping[str, Any] | str | os.PathLike[str],
        progress: bool = False,
    ) -> dict[str, Any]:
        """Runs what a dict describes, or a JSON file, and returns its result, which has a SHA-256
        that is the same on each machine; docs/heads.md says what may stand there. A dict's steer
        may be a Steering. progress: as in patch; as ./run --experiment. Errors: what is unknown,
        missing or out of range, another model's checksum."""
        progress = arguments.flag("progress", progress)
        return experiments.experiment(self, described, progress)

    def verify(
        self, result: Mapping[str, Any] | str | os.PathLike[str], progress: bool = False
    ) -> str | None:
        """Runs the experiment of such a result, a dict or a file, again. None: it holds; else the
        sentence of what differs first: model, description, a number or the SHA-256."""
        progress = arguments.flag("progress", progress)
        return experiments.verify(self, result, progress)

    # ---- vectors and classes of texts ----

    @overload
    def embed(
        self,
        texts: Prompt | Iterable[Prompt],
        dimensions: int | None = None,
        *,
        quantize: None = None,
        late_chunking: bool = False,
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> Floats: ...

    @overload
    def embed(
        self,
        texts: Prompt | Iterable[Prompt],
        dimensions: int | None = None,
        *,
        quantize: Literal["int8", "binary", "ubinary"],
        late_chunking: bool = False,
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> NDArray[Any]: ...

    def embed(
        self,
        texts: Prompt | Iterable[Prompt],
        dimensions: int | None = None,
        *,
        quantize: vectors.Quantize = None,
        late_chunking: bool = False,
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> Any:
        """The vector of a text, float32 [n_embd], or of each of several, [texts][n_embd]: pooled
        as the checkpoint says, as by ./run --embed. Of a checkpoint with a vector for each token
        (ColBERT) an array [tokens][n] for each text. Errors: it does not say how.

        dimensions: the first numbers alone, of length 1 again where vectors have it. quantize:
        "int8", each vector by its own largest number, which a cosine does not see
        (sentence-transformers scales dimensions by many vectors, so its numbers are others);
        "ubinary", a bit a number, eight to a byte; "binary", the same as int8: both as
        sentence-transformers packs them. late_chunking: the texts are parts of one, which is read
        whole. truncate: whether a text that is too long is cut (True) or refused (False); None
        cuts and warns once. adapter: what Model.adapter opened."""
        with adapters.turn(self, adapter):
            return vectors.embed(self, texts, dimensions, quantize, late_chunking, truncate)

    def token_vectors(
        self,
        texts: Prompt | Iterable[Prompt],
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> Floats | list[Floats]:
        """A vector for each token of a text, float32 [tokens][n_embd], special tokens' too, or a
        list of these: what embed would give for a text of that token's hidden state alone.
        truncate, adapter: as in embed."""
        with adapters.turn(self, adapter):
            return vectors.of_each(self, texts, truncate, vectors.token_vectors)

    def sparse(
        self,
        texts: Prompt | Iterable[Prompt],
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> dict[int, float] | list[dict[int, float]]:
        """The weights of a text's words by the head for masked words (SPLADE), {id: weight}, the
        largest first, or a list of these: the most over the text's tokens of log(1 + relu(logit)).
        truncate, adapter: as in embed. Errors: no such head."""
        with adapters.turn(self, adapter):
            return vectors.of_each(self, texts, truncate, vectors.weights)

    @overload
    def classify(
        self,
        texts: Prompt | Pair,
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> list[Label]: ...

    @overload
    def classify(
        self,
        texts: Sequence[Prompt | Pair],
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> list[list[Label]]: ...

    def classify(
        self,
        texts: Prompt | Pair | Sequence[Prompt | Pair],
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> list[Label] | list[list[Label]]:
        """The classes of a text, each a Label(label, score, token), the likeliest first; where the
        head is for tokens, each token's likeliest class, in order, the special tokens' too. Of
        several texts a list of such lists. A tuple of two texts is read as a pair. Scores are
        probabilities, or numbers where the checkpoint is a regression. As ./run --classify.
        truncate, adapter: as in embed. Errors: the checkpoint has no such head."""
        with adapters.turn(self, adapter):
            return classes.classify(self, texts, truncate)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        truncate: bool | None = None,
        adapter: Adapter | None = None,
    ) -> list[Ranked]:
        """The documents by their scores beside the query, as Ranked(index, score), the best first,
        as ./run --rank. truncate, adapter: as in embed. Errors: the checkpoint has no head that
        gives a pair a single score."""
        with adapters.turn(self, adapter):
            return classes.rank(self, query, documents, truncate)

    @property
    def labels(self) -> list[str]:
        """The names of the classes, in the order of the head; empty: there is none."""
        return classes.labels(self)

    # ---- the model ----

    def kv(self, context: int | None = None) -> Kv:
        """Bytes that a text's cache takes, as a dict: per token (until a sliding window is full),
        the state that does not grow, and all that is reserved for the context."""
        plan = KvPlan()
        options = self._workspace_options(self.context if context is None else context)
        calls.model_kv_plan(self._handles.model, byref(options), byref(plan))
        return Kv(
            context=options.context,
            bytes_per_token=plan.bytes_per_token,
            state=plan.state,
            reserved=plan.reserved,
        )

    def info(self) -> dict[str, Any]:
        """The model's shape, and how it is run."""
        shape = {name: getattr(self.shape, name) for name, _ in self.shape._fields_}
        workspace = self._handles.workspace
        return {
            "path": self.path,
            **shape,
            "encoder": bool(self.shape.encoder),
            "context": self.context,
            "threads": calls.workspace_threads(workspace),
            "isa": calls.workspace_isa(workspace).decode(),
        }

    def session(
        self,
        path: str | os.PathLike[str] | bytes | None = None,
        source: Prompt | None = None,
        lang: str | None = None,
        off: str | None = None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> Session:
        """An empty text, or the one that Session.save wrote to a file, or Session.to_bytes gave. An
        encoder-decoder first
        reads a source, which the file has too; lang: as in generate. off: attention heads to switch
        off, as ./run --off names them, "5.3,7.*": layers and their query heads, whose part of the
        layer's output is zero. steer: vectors that are added to the stream after layers, all
        through the text; a saved session has its own. adapter: what Model.adapter opened, all
        through the text; a saved session needs the one that it was made with, at its scale.
        Errors: no such head or layer."""
        heads = None if off is None else arguments.c_string("off", off) or None
        if path is not None:
            if source is not None or arguments.language(lang) or heads or steer:
                raise InputError(
                    "a saved session has its source, its language, all its heads and its steering"
                )
            with adapters.turn(self, adapter) as opened:
                if isinstance(path, bytes):
                    made = calls.sequence_parse(opened.workspace, path, len(path))
                else:
                    path = os.fsencode(arguments.path("path", path))
                    made = calls.sequence_load(opened.workspace, path)
                return Session(self, opened, made)
        self._must_fit_source(source)
        start, ids = self._begin([] if source is None else self._ids("source", source), lang)
        with adapters.turn(self, adapter) as opened:
            session = Session(self, opened, calls.sequence_new(opened.workspace, True), start)
            if heads:
                calls.sequence_off(session._handle(), heads)
            session._steer(steer)
            if ids:
                session._read(ids)
        return session
