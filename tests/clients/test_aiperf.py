"""aiperf, by its command: it streams, and reads /metrics beside."""

import json
from pathlib import Path

import pytest

from tests.clients.conftest import MODEL, TOKENIZER, run

pytestmark = pytest.mark.clients
REQUESTS, PROMPT, OUTPUT = 12, 64, 16


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_profile(url: str, tmp_path: Path, kind: str) -> None:
    run(
        *("aiperf", "profile", "--model-names", MODEL, "--url", url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", str(TOKENIZER), "--isl", str(PROMPT), "--osl", str(OUTPUT)),
        *("--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
        *(["--per-chunk-usage"] if kind == "chat" else []),
        *("--concurrency", "4", "--request-count", str(REQUESTS), "--artifact-dir", str(tmp_path), "--ui", "none"),
        cwd=tmp_path,
    )
    found = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert found["error_summary"] == []
    assert found["request_count"]["avg"] == REQUESTS
    assert found["output_sequence_length"]["min"] == found["output_sequence_length"]["max"] == OUTPUT
    assert found["usage_prompt_tokens"]["avg"] >= PROMPT  # the template adds to it
    assert found["inter_token_latency"]["avg"] > 0
    metrics = json.loads((tmp_path / "server_metrics_export.json").read_text())
    assert "jaxgen_generation_tokens" in json.dumps(metrics)
