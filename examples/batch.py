"""Upload a file of requests, run them as a batch in the background, and print the results.

Start a server that keeps files, ``scripts/serve --batch-dir DIRECTORY``, install the client with ``.venv/bin/pip
install openai``, then run ``.venv/bin/python examples/batch.py``. ``OPENAI_BASE_URL`` names another server,
``OPENAI_API_KEY`` its key. On a CPU the lines wait until a second has passed without online requests.
"""

import json
import os
import time

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = client.models.list().data[0].id
bodies = [{"model": model, "prompt": f"def {name}(", "max_tokens": 16, "seed": 1} for name in ("open", "read", "close")]
lines = [
    {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions", "body": body}
    for i, body in enumerate(bodies)
]
content = "\n".join(json.dumps(line) for line in lines).encode()
file = client.files.create(file=("requests.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
print(batch.status, batch.request_counts)
if batch.output_file_id is not None:
    for line in client.files.content(batch.output_file_id).text.splitlines():
        result = json.loads(line)
        print(result["custom_id"], repr(result["response"]["body"]["choices"][0]["text"]))
