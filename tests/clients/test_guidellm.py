"""guidellm, by its command: it asks /health, then streams with usage in the last chunk."""

import json
from pathlib import Path

import pytest

from tests.clients.conftest import MODEL, TOKENIZER, run

pytestmark = pytest.mark.clients
REQUESTS, PROMPT, OUTPUT = 12, 64, 16


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_benchmark(url: str, tmp_path: Path, route: str) -> None:
    report = tmp_path / "report.json"
    run(
        *("guidellm", "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL},request_format={route}"),
        *("--profile", "kind=concurrent,streams=4"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"),
        *("--output", f"kind=json,path={report}"),
        cwd=tmp_path,
    )
    found = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    assert found["request_totals"] == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    for percentile in ("p01", "p99"):
        assert found["output_token_count"]["successful"]["percentiles"][percentile] == OUTPUT
    assert found["prompt_token_count"]["successful"]["mean"] >= PROMPT  # the template adds to it
    assert found["time_to_first_token_ms"]["successful"]["mean"] > 0
    assert found["inter_token_latency_ms"]["successful"]["mean"] > 0
