"""Templates of our own writing, each in the style of a known form."""

CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_WITH_DEFAULT = (
    """{% if messages[0]['role'] != 'system' %}<|im_start|>system
Be kind.<|im_end|>
{% endif %}"""
    + CHATML
)

CRLF = CHATML.replace("\n", "\r\n").replace("{%- endfor %}", "-\r\n{%- endfor %}")

LLAMA2 = """
{%- set system = '' %}{% set rest = messages %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}{% endif %}
{%- for m in rest %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
    {%- if m.role == 'user' %}
        {%- set text = m.content %}
        {%- if loop.first and system %}{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + text %}{% endif %}
        {{- bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

LLAMA3 = """{{ bos_token }}
{%- for m in messages -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# The system message wanders to the last user's; an answer loses its left white space.
MISTRAL = """
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{{- bos_token }}
{%- for m in rest %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
    {%- if m.role == 'user' %}
        {{- '[INST]' }}{% if loop.last and system is not none %}{{ system + '\\n\\n' }}{% endif %}
        {{- m.content + '[/INST]' }}
    {%- else %}{{ ' ' + m.content.lstrip() + eos_token }}{% endif %}
{%- endfor %}"""

DATE = """<|system|>Today is {{ strftime_now('%d %b %Y') }}, {{ strftime_now("%A %-d.%-m. %H:%M %p %j %y") }}.
{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""

# Thinking is cut out of history, has a switch, and words in a system message change what is written elsewhere.
THINKING = """
{%- set ns = namespace(last=-1, off=false) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set text = m.content %}
    {%- if m.role == 'system' and '/quiet' in text %}{% set ns.off = true %}{% endif %}
    {%- if m.role == 'assistant' %}
        {%- if '</think>' in text %}
            {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
            {%- if loop.index0 > ns.last %}{% set text = '<think>\\n' + thought + '\\n</think>\\n\\n' + text %}{% endif %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if ns.off or (enable_thinking is defined and enable_thinking is false) %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

EFFORT = """<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>
{%- for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

# An empty message is skipped, an empty system message counts as none, and the generation tag marks answers.
EMPTY = """
{%- for m in messages %}
    {%- if m.role == 'system' and not m.content %}{% continue %}{% endif %}
    {%- if m.role == 'assistant' %}{% generation %}{{ '<a>' + m.content + '</a>' }}{% endgeneration %}
    {%- elif m.content %}{{ '<' + m.role + '>' + m.content + '\\n' }}
    {%- else %}<nothing>{% endif %}
{%- endfor %}{{ '<a>' if add_generation_prompt }}"""

EXACT = {
    "chatml": CHATML,
    "default system": CHATML_WITH_DEFAULT,
    "CRLF": CRLF,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "date": DATE,
    "thinking": THINKING,
    "effort": EFFORT,
    "empty": EMPTY,
}

# What cannot be compiled, and the reason that is recorded.
REFUSED = {
    "{% for m in messages": "jinja2 cannot read it: ",
    "{{ messages[0].content }}": "it leaves out a message",
    "{% for m in messages | reverse %}{{ m.content }}{% endfor %}": "it changes the order of the messages",
    "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}": "it writes a message twice",
    "{% for m in messages %}[{{ messages | length }}]{{ m.content }}{% endfor %}": "what it writes between two messages depends on others",
    "{{ raise_exception('tools are required') }}": "it fails with: tools are required",
    "{{ tools[0].name }}": "it fails with: ",
    "{{ strftime_now('%s') }}{% for m in messages %}{{ m.content }}{% endfor %}": "it prints a date as '%s'",
    "{% for m in messages %}{{ m.content | tojson }}{% endfor %}": "it changes plain texts",
    "{% for m in messages %}{{ m.content.split(' ') | join('_') }}{% endfor %}": "it changes plain texts",
    "{{ ''.__class__.x }}{% for m in messages %}{{ m.content }}{% endfor %}": "it fails with: ",
    "{{ messages.clear() }}": "it fails with: ",
}
