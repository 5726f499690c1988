"""Texts that keep to a grammar. llguidance says which tokens may come next, and the scheduler asks
it before each pick. https://github.com/guidance-ai/llguidance"""

from __future__ import annotations

import ctypes
import json
import threading
import weakref
from concurrent.futures import Future, TimeoutError
from itertools import permutations
from typing import TYPE_CHECKING

from ._arguments import refusal
from ._checkpoint import Checkpoint
from ._native import InputError, Mask

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# White space as json.dumps writes it: a model that may write any can write it for ever.
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

LONGEST, DEEP = 1 << 17, 256 << 20  # a grammar's characters; bytes of the stack that reads it
SECONDS = 10  # that reading it may take
FUEL = 250_000  # for its regular expressions, a quarter of llguidance's own
_reading = threading.BoundedSemaphore(2)
STRANGE = b"\x02"  # a character that merges with no other


def of_schema(schema: str | dict | bool) -> str:
    """llguidance's form of a JSON schema. Errors: InputError, it is no JSON."""
    if not isinstance(schema, (str, dict, bool)):
        raise refusal("schema", "a JSON schema, as a dict or as JSON", schema)
    make = _llguidance().LLMatcher.grammar_from_json_schema
    try:
        tree = readable(json.loads(schema) if isinstance(schema, str) else schema)
        return make(json.dumps(tree, allow_nan=False), defaults=JSON_OPTIONS)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"schema: it is not JSON: {error}"[:300]) from None


# Where a schema has schemas: one or an array of them, and by name.
PARTS = """items additionalItems additionalProperties propertyNames not if then else prefixItems anyOf
oneOf allOf""".split()
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
FREE = {"path", "file-path", "directory-path", "password", "binary"}  # formats of any string
SAYS_LITTLE = {"title", "description", "default", "$schema", "$id", "$defs", "definitions"}
MOST_UNIQUE = 4  # values whose orders are written out: 65 of them


def readable(schema, root: dict | None = None):
    """A JSON schema without what llguidance does not know and a grammar can do without. Errors:
    InputError."""
    if not isinstance(schema, dict):
        return schema
    root = schema if root is None else root
    found = dict(schema)
    for name, value in schema.items():
        if name in NAMED and isinstance(value, dict):
            found[name] = {key: readable(part, root) for key, part in value.items()}
        elif name in PARTS and isinstance(value, list):
            found[name] = [readable(part, root) for part in value]
        elif name in PARTS:
            found[name] = readable(value, root)
    if isinstance(found.get("format"), str) and found["format"] in FREE:
        del found["format"]
    if not isinstance(found.get("uniqueItems"), bool):
        return found
    return _unique(found, root) if found.pop("uniqueItems") else found


def _unique(array: dict, root: dict) -> dict:
    """An array whose items differ, as one of all that there are."""
    least, most = array.get("minItems", 0), array.get("maxItems")
    if most in (0, 1):
        return array
    rest = {x: array[x] for x in array if x not in ("type", "items", "minItems", "maxItems")}
    values = _values(array.get("items"), root)
    if array.get("type") != "array" or not values or not set(rest) <= SAYS_LITTLE:
        raise InputError(
            "schema: uniqueItems: a grammar cannot compare an item with others, but for up to "
            f"{MOST_UNIQUE} values of an enum; leave it out, and compare them yourself"
        )
    sizes = range(least, len(values) + 1 if most is None else min(most, len(values)) + 1)
    orders = [order for n in sizes for order in permutations(values, n)]
    return {**rest, "enum": [list(order) for order in orders]}


def _values(items, root: dict) -> list | None:
    """All that an item may be, if it is one of a few."""
    if not isinstance(items, dict):
        return None
    path = items.get("$ref")
    if isinstance(path, str) and path.startswith("#/"):
        for name in path[2:].split("/"):
            root = root.get(name) if isinstance(root, dict) else None
        items = root if isinstance(root, dict) else {}
    values = [items["const"]] if "const" in items else items.get("enum")
    if items.get("type") == "boolean" and values is None:
        values = [False, True]
    if not isinstance(values, list) or len(values) > MOST_UNIQUE:
        return None
    others = set(items) - {"const", "enum", "type"} - SAYS_LITTLE
    return None if others else list({json.dumps(x): x for x in values}.values())


def of_syntax(syntax: str, definition: str) -> str:
    """The same of a grammar in Lark's syntax, "lark", or of a regular expression, "regex"."""
    matcher = _llguidance().LLMatcher
    make = matcher.grammar_from_lark if syntax == "lark" else matcher.grammar_from_regex
    return make(definition)


def around(outer: str, grammar: str) -> str:
    """The grammar `outer`, in Lark's syntax, in which @inner is another."""
    inner = json.loads(grammar)["grammars"][0]
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**inner, "name": "inner"}]})


def _llguidance():
    try:
        import llguidance
    except ModuleNotFoundError:
        raise InputError(
            "grammars and schemas need llguidance, which comes with the extra 'serve': "
            "pip install '.[serve]' in the repository"
        ) from None
    return llguidance


class _Tokens:
    """A model's tokenizer with the names that llguidance asks for."""

    def __init__(self, model: Checkpoint, ends: list[int]):
        size = model.shape.vocab_size
        self.model, self.eos_token_id, self.bos_token_id = model, ends[0], None
        self.tokens = [model.token_bytes(id) for id in range(size)]
        self.special_token_ids = [id for id in range(size) if model.is_special(id)]
        first = model.encode(b"a", special=False)[:1]
        self.spaces = any(self.tokens[id].startswith(b" ") for id in first)

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text inside of another, without the space that SentencePiece's begin with."""
        before = STRANGE if self.spaces else b""
        ids = self.model.encode(before + text, special=False)
        return ids[len(self.model.encode(before, special=False)) :]


_tokenizers: weakref.WeakKeyDictionary[Checkpoint, dict[tuple, LLTokenizer]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


def _tokenizer(model: Checkpoint, ends: list[int]) -> LLTokenizer:
    with _lock:
        made = _tokenizers.setdefault(model, {})
        if tuple(ends) not in made:
            if not ends:
                raise InputError("this model has no token that ends a text, which a grammar needs")
            llguidance = _llguidance()
            wrapper = llguidance.TokenizerWrapper(_Tokens(model, ends))
            made[tuple(ends)] = llguidance.LLTokenizer(wrapper, eos_token=ends)
        return made[tuple(ends)]


def matcher(model: Checkpoint, grammar: str, ends: list[int] | None = None) -> LLMatcher:
    """Where a text that is empty stands in a grammar; each text has a copy of it.
    ends: the tokens that end it, else the model's. Errors: InputError, the grammar."""
    if len(grammar) > LONGEST:
        raise InputError(f"the grammar has {len(grammar)} characters, and at most {LONGEST} may be")
    llguidance = _llguidance()
    limits = llguidance.LLParserLimits(verbose_errors=False, initial_lexer_fuel=FUEL)
    tokenizer = _tokenizer(model, model.end_ids() if ends is None else ends)
    made = _deeply(lambda: llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits))
    if made.is_error():
        raise InputError(f"the grammar cannot be used: {made.get_error()}"[:600])
    return made


def _deeply(work):
    """What work() returns, on a stack that is deep enough: llguidance calls itself for each rule
    that a rule names, and some thousand of them end a process whose stack is 8 MB. Errors:
    InputError, it takes too long. It cannot be ended then, so few may be at work."""
    made: Future = Future()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)
        finally:
            _reading.release()

    if not _reading.acquire(timeout=SECONDS):
        raise InputError("other grammars are still being read; try again later")
    thread = threading.Thread(target=run, daemon=True)
    with _lock:
        before = threading.stack_size(DEEP)
        try:
            thread.start()
        except RuntimeError:  # no memory for it
            _reading.release()
            raise MemoryError from None
        finally:
            threading.stack_size(before)
    try:
        return made.result(SECONDS)
    except TimeoutError:
        raise InputError(f"the grammar takes more than {SECONDS} seconds to read") from None


def mask(matcher: LLMatcher, vocab_size: int):
    """The callback of a request's text."""
    n_read, n_bytes = 0, (vocab_size + 31) // 32 * 4

    def allow(_, tokens, n: int, bits) -> int:
        nonlocal n_read
        try:
            matcher.consume_tokens(tokens[n_read:n])
            n_read = n
            if not matcher.is_error():
                matcher.unsafe_compute_mask_ptr(ctypes.addressof(bits.contents), n_bytes)
            return int(matcher.is_error())
        except Exception:  # which ctypes would print and forget
            return 1

    return Mask(allow)
