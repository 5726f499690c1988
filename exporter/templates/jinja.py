"""Chat templates as transformers 5.23's apply_chat_template renders them, and where checkpoints
keep them."""

from __future__ import annotations

import json
import os
from datetime import datetime
from typing import Callable, Mapping, Sequence

from ..json_files import beside
from ..tensor import ExportError
from .bounded import TooMuch

Message = Mapping[str, str]
LONGEST = 1 << 22  # characters that a template may make of the conversations it is tried with


class TemplateFails(Exception):
    """The template raises; the text says what."""


def _environment(strftime_now: Callable[[str], str]):
    """jinja2 with the settings, extensions, filters and globals that transformers gives
    templates."""
    try:
        import jinja2
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ExportError("the chat template needs jinja2; pip install jinja2") from None

    class Dict:
        """`dict`, without what else a class gives away."""

        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    class Namespace(jinja2.utils.Namespace):
        """`namespace`, whose attributes may not begin with an underscore."""

        def __init__(*args, **kwargs):  # so that an attribute may be called self
            self, values = args[0], dict(*args[1:], **kwargs)
            for name in values:
                Namespace._check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            Namespace._check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(
                    f"namespace: {name!r} begins with an underscore"
                )

    class Generation(Extension):
        """{% generation %} .. {% endgeneration %}, which marks what an assistant wrote and prints
        it as it is."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_body")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    extensions = [Generation, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["dict"] = Dict()
    environment.globals["namespace"] = Namespace
    environment.globals["strftime_now"] = strftime_now
    return environment


class Template:
    """A compiled template. `now` is the clock it sees; None: strftime_now returns a placeholder,
    and `formats` collects what it was asked for."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]):
        self.now: datetime | None = None
        self.formats: list[str] = []
        self.tokens = dict(special_tokens)
        environment = _environment(self._strftime_now)
        try:
            self.tree = environment.parse(text)
            self.template = environment.from_string(text)
        except MemoryError:
            raise
        except Exception as error:  # a syntax error, or what the parser makes of an odd one
            raise TemplateFails(f"jinja2 cannot read it: {_first_line(error)}") from None

    def _strftime_now(self, format: str) -> str:
        if self.now is not None:
            return self.now.strftime(format)
        if format not in self.formats:
            self.formats.append(format)
        return placeholder(self.formats.index(format))

    def render(
        self,
        messages: Sequence[Message],
        prompt: bool,
        variables: Mapping[str, object],
        tools: Sequence[Mapping] | None = None,
    ) -> str:
        """The text of a conversation; `prompt`: with the beginning of an answer. Errors:
        TemplateFails; MemoryError; TooMuch."""
        try:
            text = self.template.render(
                messages=[_with_thoughts(m) for m in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **{**self.tokens, **variables},
            )
        except MemoryError:
            raise
        except Exception as error:  # a template may raise anything
            raise TemplateFails(_first_line(error)) from None
        if len(text) > LONGEST:
            raise TooMuch(f"of a short conversation it writes {len(text):,} characters")
        return text


def _with_thoughts(message: Message) -> dict[str, str]:
    """gpt-oss's template has another name for an assistant's thoughts than all others."""
    thoughts = message.get("reasoning_content")
    return dict(message) if thoughts is None else {"thinking": thoughts, **message}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]


def placeholder(i: int) -> str:
    """The text that stands for the date in format number i."""
    return f"\ue000{i}\ue001"


def chat_template(directory: str) -> str | None:
    """The template of a Hugging Face directory: chat_template.jinja, or tokenizer_config.json's, of
    several the default. None: there is none, which left_out() may say more of. Errors:
    ExportError."""
    path = os.path.join(directory, "chat_template.jinja")
    if os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    template = beside(directory, "tokenizer_config.json").get("chat_template")
    if isinstance(template, dict):
        template = template.get("default")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def left_out(directory: str) -> str | None:
    """A remark on templates that have names of their own, where none is the default."""
    folder = os.path.join(directory, "additional_chat_templates")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    names = [name.removesuffix(".jinja") for name in names if name.endswith(".jinja")]
    template = beside(directory, "tokenizer_config.json").get("chat_template")
    if isinstance(template, dict):
        names += list(template)
    elif isinstance(template, list):
        names += [str(t.get("name")) for t in template if isinstance(t, dict)]
    if not names:
        return None
    return (
        f"no chat template is the default, only {', '.join(names)} are there, which transformers "
        "takes by name; to chat, copy one to chat_template.jinja"
    )
