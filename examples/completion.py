"""Complete one prompt and print the text, the token counts and the most probable first tokens.

Start a server with ``scripts/serve``, install the client with ``.venv/bin/pip install openai``, then run
``.venv/bin/python examples/completion.py``. ``OPENAI_BASE_URL`` names another server, ``OPENAI_API_KEY`` its key.
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = client.models.list().data[0].id

# With a seed, and the same server, the answer has the same tokens each time.
answer = client.completions.create(
    model=model, prompt="def read_lines(path):\n", max_tokens=48, temperature=0.8, seed=7, logprobs=3
)
choice = answer.choices[0]
print(choice.text)
print("---")
print("finish_reason:", choice.finish_reason)
if answer.usage is not None:
    print("tokens:", answer.usage.prompt_tokens, "in,", answer.usage.completion_tokens, "out")
if choice.logprobs is not None and choice.logprobs.top_logprobs:
    print("first token:", choice.logprobs.top_logprobs[0])
