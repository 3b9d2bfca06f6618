"""Chat templates of our own in the formats that models use for tools."""

HERMES = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nFor each call write <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """\
{%- if tools %}{{ 'Respond in the format {"name": function name, "parameters": dictionary of argument name and ' }}
{{- 'its value}.\\n' }}{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{% endif %}
{%- for m in messages %}{{ '<|' + m.role + '|>' }}
{%- if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set f = m.tool_calls[0].function %}{{ '{"name": "' + f.name + '", "parameters": ' + (f.arguments | tojson) + '}' }}
{%- else %}{{ m.content }}{% endif %}{{ '<|eot|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

MISTRAL = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- '[TOOL_RESULTS]' + m.name + ': ' + m.content + '[/TOOL_RESULTS]' }}
{%- elif m.tool_calls %}{{ '[TOOL_CALLS]' + (m.tool_calls | map(attribute='function') | list | tojson) }}
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""

MISTRAL_V11 = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}{% for call in m.tool_calls %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments }}{% endfor %}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}"""
"""It takes arguments as texts, as those of version 11 do."""

QWEN3_XML = """\
{%- if tools %}{{ '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nWrite <tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n' }}
{{- '</function>\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}{% endfor %}
{{- '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

GLM45 = """\
{%- if tools %}{{ '<|system|>\\n' }}{%- for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{% endif %}
{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name + '\\n' }}
{%- for key, value in call.function.arguments | items %}{{ '<arg_key>' + key + '</arg_key>\\n<arg_value>' }}
{{- (value if value is string else value | tojson) + '</arg_value>\\n' }}{% endfor %}
{{- '</tool_call>' }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

HARMONY = """\
{{- '<|start|>system<|message|>' }}
{%- for tool in tools or [] %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{- '<|end|>' }}
{%- for m in messages %}
{%- if m.tool_calls %}{% set f = m.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' + (f.arguments | tojson) }}
{{- '<|call|>' }}
{%- elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'tool' %}{{ '<|start|>functions.f to=assistant<|channel|>commentary<|message|>' + m.content }}
{{- '<|end|>' }}{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

GEMMA4 = """\
{%- macro shown(value) %}
{%- if value is string %}{{ '<|"|>' + value + '<|"|>' }}
{%- elif value is mapping %}{{ '{' }}{% for key, one in value | items %}{{ ',' if not loop.first }}
{{- key + ':' }}{{ shown(one) }}{% endfor %}{{ '}' }}
{%- elif value is iterable %}{{ '[' }}{% for one in value %}{{ ',' if not loop.first }}{{ shown(one) }}{% endfor %}
{{- ']' }}{%- else %}{{ value | tojson }}{% endif %}{% endmacro %}
{%- if tools %}{{ '<|turn>system\\n' }}{% for tool in tools %}{{ '<|tool>' + (tool | tojson) + '<tool|>' }}{% endfor %}
{{- '<turn|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|tool_response>response:' + m.content + '<tool_response|>' }}
{%- else %}{{ '<|turn>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{ '<|tool_call>call:' + call.function.name }}
{{- shown(call.function.arguments) + '<tool_call|>' }}{% endfor %}{{ '<turn|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\\n' }}
{%- if enable_thinking is defined %}{{ '<|channel>thought\\n' + ('' if enable_thinking else '<channel|>') }}{% endif %}
{%- endif %}"""

BY_FORMAT = {
    "gemma4": GEMMA4,
    "hermes": HERMES,
    "llama3_json": LLAMA3,
    "mistral": MISTRAL,
    "mistral_v11": MISTRAL_V11,
    "qwen3_xml": QWEN3_XML,
    "glm45": GLM45,
    "openai": HARMONY,
}

_THOUGHT = """\
{%- if add_generation_prompt and enable_thinking is defined %}
{{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}{% endif %}"""

BY_REASONING = {
    "qwen3": HERMES + _THOUGHT,
    "deepseek_r1": HERMES.replace("m.content }}", "m.content.split('</think>')[-1] }}"),
    "openai_gptoss": HARMONY,
    "gemma4": GEMMA4,
}
"""qwen3's and gemma4's open the reasoning where ``enable_thinking`` is true, and close it where that is false."""
