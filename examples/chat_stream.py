"""Stream the answer to a conversation and print it piece by piece.

Start ``scripts/serve``, install the client with ``.venv/bin/pip install openai``, then run ``.venv/bin/python
examples/chat_stream.py``. ``OPENAI_BASE_URL`` names another server, ``OPENAI_API_KEY`` its key.
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[
        {"role": "system", "content": "write Python"},
        {"role": "user", "content": "a function that opens a file"},
    ],
    max_completion_tokens=48,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:  # the last chunk
        print(f"\n---\ntokens: {chunk.usage.prompt_tokens} in, {chunk.usage.completion_tokens} out")
