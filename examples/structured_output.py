"""Ask for JSON of a schema, and get an object that can be parsed whatever the model is.

Start a server with ``scripts/serve``, install the client with ``.venv/bin/pip install openai``, then run
``.venv/bin/python examples/structured_output.py``. ``OPENAI_BASE_URL`` names another server, ``OPENAI_API_KEY`` its
key. At ``/v1/chat/completions`` the same ``response_format`` is an argument of the SDK's own.
"""

import json
import os

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "language": {"enum": ["Python", "C"]},
        "lines": {"type": "integer", "minimum": 1, "maximum": 999},
        "tested": {"type": "boolean"},
    },
    "required": ["language", "lines", "tested"],
    "additionalProperties": False,
}

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
answer = client.completions.create(
    model=client.models.list().data[0].id,
    prompt="# a program, described as JSON\n",
    max_tokens=64,
    seed=1,
    extra_body={"response_format": {"type": "json_schema", "json_schema": {"name": "program", "schema": SCHEMA}}},
)
print(json.dumps(json.loads(answer.choices[0].text), indent=2))
