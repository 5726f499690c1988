"""Templates with tools as their families write them, in short, and what models write then."""

from __future__ import annotations

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "K\u00f6ln"]},
        "days": {"type": "integer", "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
FUNCTIONS = [tool["function"] for tool in TOOLS]
QUESTION = [{"role": "user", "content": "what is it?"}]
# As the templates of these families write them, in short.
HEAD = """
{%- if tools %}{{ '[S]' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}
{%- for m in messages %}
{{- '[' + m.role[0] + ']' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}"""
TAIL = """{% endfor %}{{- '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '[a]' }}{% endif %}"""
CALL = """{{ '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson + '}\n</tool_call>' }}"""
TEMPLATES = {
    "hermes": HEAD + CALL + TAIL,
    "mistral": HEAD + "{{ '[TOOL_CALLS][' + c.function | tojson + ']' }}" + TAIL,
    "llama": HEAD + """{{ '{"name": "' + c.function.name + '", "parameters": ' }}
{{- c.function.arguments | tojson + '}' }}{# ipython #}""" + TAIL,
    # Whose arguments are strings, and which shows no calls beside a content.
    "deepseek": HEAD.replace("m.tool_calls or []", "(m.tool_calls if m.content is none else [])") + """
{{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name }}
{{- '\\n```json\\n' + c.function.arguments + '\\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}""" + TAIL,
    "mistral-11": HEAD + """{{ '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id }}
{{- '[ARGS]' + c.function.arguments | tojson }}""" + TAIL,
    "mistral-13": HEAD + """{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' }}
{{- c.function.arguments | tojson }}""" + TAIL,
    "deepseek-3.1": HEAD + """
{{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' }}
{{- c.function.arguments | tojson + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}""" + TAIL,
    "deepseek-3.2": HEAD + "{{ '<｜DSML｜invoke name=' + c.function.name }}" + TAIL,
    "qwen-coder": HEAD + "{{ '<tool_call>\n<function=' + c.function.name }}" + TAIL,
    "harmony": HEAD + "{{ '<|channel|><|message|>' + c.function | tojson }}" + TAIL,
    "unknown": HEAD + "{{ c.function.name }}" + TAIL,
    "plain": HEAD.replace("if tools", "if false") + TAIL,
    "stripped": HEAD.replace("m.content or ''", "(m.content or '') | trim") + CALL + TAIL,
    "silent": HEAD.replace("m.content or ''", "m.content[:1000] or ''") + CALL + TAIL,
    "thinking": HEAD + CALL + TAIL[:-len("{% endif %}")] + "<think>{% endif %}{# </think> #}",
}  # fmt: skip


def functions_of(calls) -> list[dict]:
    """The tools, and others that are called."""
    known = {x["name"] for x in FUNCTIONS}
    return [*FUNCTIONS, *({"name": name} for name, _ in calls if name not in known)]


FOUND = [  # template, text, what is said, calls
    ("hermes", "Hello.", "Hello.", []),
    (
        "hermes",
        'I look.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        '<tool_call>{"name": "weather", "arguments": {"city": "\u00e9"}}</tool_call>',
        "I look.",
        [("now", {}), ("weather", {"city": "\u00e9"})],
    ),
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}', "", [("now", {})]),
    ("hermes", 'Ah.\n<tool_call>{"name": "now", "argu', "Ah.", []),
    ("hermes", 'Ah.<tool_call>{"arguments": {"a": "b', "Ah.", []),
    ("hermes", "Ah. <tool_call>\n", "Ah.", []),
    ("hermes", '<tool_call>{"name": "then', "", []),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}, "id": {"a": "}"}}</tool_call>\nDone.',
        "Done.",
        [("now", {})],
    ),
    (
        "hermes",
        'I look.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nDone.\n',
        "I look.\n\nDone.\n",
        [("now", {})],
    ),
    (
        "hermes",
        '<tool_call>\n{"arguments": {"city": "}\\"\u00e9"}, "name": "weather"}\n</tool_call>\n'
        '<tool_call>{"id": "a1", "type": "function", "name": "now", "arguments": "{\\"a\\": 1}"}'
        "</tool_call>",
        "",
        [("weather", {"city": '}"\u00e9'}), ("now", {"a": 1})],
    ),
    (
        "hermes",
        '<tool_call>{"function": {"name": "now", "arguments": null}}</tool_call> Yes.',
        "Yes.",
        [("now", {})],
    ),
    *(
        ("hermes", f"<tool_call>{text}</tool_call>", f"<tool_call>{text}</tool_call>", [])
        for text in (
            '{"name": "Anna", "arguments": {}}',
            '{"arguments": [], "name": "Anna"}',
            '{"name": "now", "arguments": "Oslo"}',
            '{"arguments": {"a": NaN}, "name": "now"}',
            '{"arguments": {}, "name": "now", }',
        )
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"arguments": {"a": 1}, "name": "now"}, {"id": "x", "name": "b", '
        '"arguments": "{}"}]',
        "",
        [("now", {"a": 1}), ("b", {})],
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "a"}, {"name": "b", "arguments": {}}]',
        "",
        [("now", {}), ("b", {})],
    ),
    ("llama", '{"name": "Anna"}', '{"name": "Anna"}', []),
    ("llama", '{"name": "now', '{"name": "now', []),
    ("llama", '<|python_tag|>{"name": "now', "", []),
    ("llama", '{"name": "nowhere", "parameters": {}}', '{"name": "nowhere", "parameters": {}}', []),
    ("hermes", "a <tool_call>{}</tool_call> b", "a <tool_call>{}</tool_call> b", []),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "now", "arguments": {"a": [1]}}, {"name": "b", "arguments": {}}]',
        "",
        [("now", {"a": [1]}), ("b", {})],
    ),
    ("mistral", "[TOOL_CALLS][5]", "[TOOL_CALLS][5]", []),
    ("llama", '{"name": "now", "parameters": {"a": 1}}', "", [("now", {"a": 1})]),
    (
        "llama",
        '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
        "",
        [("a", {}), ("b", {})],
    ),
    (
        "llama",
        '{"type": "function", "name": "now", "parameters": {"a": "}\\\\\\""}}',
        "",
        [("now", {"a": '}\\"'})],
    ),
    ("llama", '{"a": 5} is JSON', '{"a": 5} is JSON', []),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}</tool_call> Yes.', "Yes.", [("now", {})]),
    ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"na', "", [("now", {})]),
    (  # https://huggingface.co/deepseek-ai/DeepSeek-R1, the template's own form
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Tokyo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("get_weather", {"city": "Tokyo"}), ("now", {})],
    ),
    (  # https://github.com/ggml-org/llama.cpp, tests/test-chat.cpp, as of Mistral Small 3.2
        "mistral-11",
        '[TOOL_CALLS]special_function[CALL_ID]123456789[ARGS]{"arg1": 1}',
        "",
        [("special_function", {"arg1": 1})],
    ),
    (
        "mistral-11",
        'Yes.[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]b[CALL_ID]1[ARGS]{"c": "]"} and',
        "Yes. and",
        [("now", {}), ("b", {"c": "]"})],
    ),
    ("mistral-13", "[TOOL_CALLS]now[CALL_ARGS]{}", "[TOOL_CALLS]now[CALL_ARGS]{}", []),
    (  # https://huggingface.co/unsloth/Devstral-Small-2507, the template's own form
        "mistral-13",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Z\u00fcrich"}[TOOL_CALLS]now[ARGS]{}',
        "",
        [("get_weather", {"city": "Z\u00fcrich"}), ("now", {})],
    ),
    (  # https://huggingface.co/deepseek-ai/DeepSeek-V3.1, "ToolCall"
        "deepseek-3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Tokyo"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("get_weather", {"city": "Tokyo"}), ("now", {})],
    ),
    (  # https://huggingface.co/Qwen/Qwen3.5-4B, what the template shows a model
        "qwen-coder",
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
        "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
        "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>",
        "",
        [
            (
                "example_function_name",
                {
                    "example_parameter_1": "value_1",
                    "example_parameter_2": "This is the value for the second parameter\nthat can "
                    "span\nmultiple lines",
                },
            )
        ],
    ),
    (
        "qwen-coder",
        "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\n5\n</parameter>\n"
        "<parameter=days>\n5\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>"
        "\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "I look.",
        [("weather", {"city": "5", "days": 5, "b": True}), ("now", {})],
    ),
    ("qwen-coder", "<tool_call> <function= is", "<tool_call> <function= is", []),
    (  # https://huggingface.co/deepseek-ai/DeepSeek-V3.2, its encoding
        "deepseek-3.2",
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter '
        'name="location" string="true">Hangzhou</｜DSML｜parameter>\n<｜DSML｜parameter name="days" '
        'string="false">[2, 3]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        [("get_weather", {"location": "Hangzhou", "days": [2, 3]}), ("now", {})],
    ),
    ("deepseek", "<｜tool▁calls▁begin｜> are", "<｜tool▁calls▁begin｜> are", []),
    ("llama", 'It is {"name": "now", "parameters": {}}', 'It is {"name": "now", "parameters": {}}', []),
]  # fmt: skip
THOUGHT = [  # text, message
    ("<think>\nHm.\n</think>\n\nYes.\n", {"reasoning_content": "Hm.", "content": "Yes.\n"}),
    ("<think>\n\n</think>\n\nYes.", {"content": "Yes."}),
    ("<think>Hm", {"reasoning_content": "Hm", "content": ""}),
    ("A <think> B", {"content": "A <think> B"}),
    ("<thin", {"content": "<thin"}),
]
# https://cookbook.openai.com/articles/openai-harmony
HARMONY = [  # text, message, calls
    (
        '<|channel|>analysis<|message|>User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.'
        "<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.",
        {
            "reasoning_content": 'User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.',
            "content": "2 + 2 = 4.",
        },
        [],
    ),
    (
        "<|channel|>analysis<|message|>Need to use function get_current_weather.<|end|><|start|>"
        "assistant<|channel|>commentary to=functions.get_current_weather <|constrain|>json<|message|>"
        '{"location":"San Francisco"}<|call|>',
        {"reasoning_content": "Need to use function get_current_weather.", "content": None},
        [("get_current_weather", '{"location":"San Francisco"}')],
    ),
    (
        ' to=functions.now<|channel|>commentary json<|message|>{"a": 1}',
        {"content": None},
        [("now", '{"a": 1}')],
    ),
    ("It is 4.", {"content": "It is 4."}, []),
    (
        "<|channel|>final<|message|>Ah.<|end|><|start|>assistant<|channel|>commentary to=functions.n",
        {"content": "Ah."},
        [],
    ),
]
