"""Small chat templates in the manner of each family that calls tools, and what its models answer.

Written for the tests; each shows tools, calls and results as its family's do, and refuses what theirs refuse.
"""

from __future__ import annotations

HERMES = """\
{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools> Answer with <tool_call></tool_call>.<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% elif m.tool_calls %}<|im_start|>assistant
{{ m.content }}{% for call in m.tool_calls %}{% set f = call.function %}

<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</tool_call>
{%- endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """\
{%- for m in messages %}
{%- if m.role == 'tool' %}[ipython]{{ m.content | tojson }}
{% elif m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('This model calls one tool at a time.') }}{% endif -%}
{%- set f = m.tool_calls[0].function -%}
[assistant]{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}
{% else %}[{{ m.role }}]{{ m.content | trim }}
{% endif %}
{%- if loop.first and tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=4) }}
{% endfor %}Put <|python_tag|> before it.
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""

MISTRAL = """\
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if loop.last and tools is not none %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Tool call IDs have nine letters and digits!') }}{% endif %}
{{- call.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]</s>
{%- elif m.role == 'assistant' %}{{ m.content }}</s>
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs have nine letters!') }}{% endif %}
{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user, assistant and tool messages, please.') }}
{%- endif %}
{%- endfor %}"""

PYTHONIC = """\
{%- if tools %}Call them like [func_name1(params_name1=params_value1), func_name2()]:
{{ tools | tojson }}
{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}<assistant>[{% for call in m.tool_calls %}{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() %}{{ name }}={{ value | tojson }}
{{- ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]
{% else %}<{{ m.role }}>{{ m.content }}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""

TEMPLATES = {"hermes": HERMES, "llama3_json": LLAMA3, "mistral": MISTRAL, "pythonic": PYTHONIC}

# Two calls, of f with {"x": "é"} and of g with nothing.
ANSWERS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": {"x": "é"}}; {"name": "g", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"x": "é"}}, {"name": "g", "arguments": {}}]',
    "pythonic": "[f(x='é'), g()]",
}

# In the manner of Qwen 3: thinks unless told not to, and knows no tools.
THINKING = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}
{%- if reasoning_effort is defined %}effort={{ reasoning_effort }}
{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
THINKING_OPENED = (
    THINKING.removesuffix("{% endif %}")
    + "{% if enable_thinking is not defined %}<think>\n{% endif %}{% endif %}"
)
# In the manner of DeepSeek R1: always opens a thought.
ALWAYS_THINKING = (
    "{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<think>\n{% endif %}"
)
