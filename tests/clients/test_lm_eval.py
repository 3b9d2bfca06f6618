"""lm_eval, by its command, on a task made here: its scores are those that follow from what the server itself says."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.clients.conftest import MODEL, TOKENIZER, post, run

pytestmark = pytest.mark.clients
DATA = Path(__file__).parent / "recall.jsonl"
TASK = f"""
task: recall
dataset_path: json
dataset_kwargs: {{data_files: {{test: {DATA}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def score(url: str, context: str, continuation: str) -> tuple[float, bool]:
    """The log-probability of a continuation, and whether it is the greedy one: from log-probabilities of the prompt in
    vLLM's shape, where lm_eval reads OpenAI's."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokens = tokenizer.encode(context + continuation).ids
    begin = len(tokenizer.encode(context).ids)
    body = {"model": MODEL, "prompt": tokens, "max_tokens": 0, "prompt_logprobs": 1}
    known = post(f"{url}/v1/completions", body)["choices"][0]["prompt_logprobs"]
    entries = [(known[i][str(tokens[i])], known[i].values()) for i in range(begin, len(tokens))]
    total = sum(own["logprob"] for own, _ in entries)
    return total, all(own["logprob"] == max(other["logprob"] for other in all_) for own, all_ in entries)


def samples(url: str, tmp_path: Path, *, at_once: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of the task, and what they are made of, by question."""
    (tmp_path / "recall.yaml").write_text(TASK)
    wanted = {"model": MODEL, "base_url": f"{url}/v1/completions", "tokenizer": TOKENIZER, "num_concurrent": at_once}
    run(
        *("lm_eval", "run", "--model", "local-completions", "--tasks", "recall", "--include_path", str(tmp_path)),
        *("--model_args", ",".join(f"{name}={value}" for name, value in wanted.items())),
        *("--output_path", str(tmp_path / "out"), "--log_samples", "--batch_size", str(at_once)),
        cwd=tmp_path,
    )
    (results,) = (tmp_path / "out").rglob("results_*.json")
    (lines,) = (tmp_path / "out").rglob("samples_recall_*.jsonl")
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    return json.loads(results.read_text())["results"]["recall"], sorted(found, key=lambda sample: sample["doc_id"])


@pytest.mark.parametrize("at_once", [1, 4])
def test_scores(url: str, tmp_path: Path, at_once: int) -> None:
    """``at_once``: prompts of a request, and requests."""
    totals, found = samples(url, tmp_path, at_once=at_once)
    questions = [json.loads(line) for line in DATA.read_text().splitlines()]
    right = right_by_length = 0
    for question, sample in zip(questions, found, strict=True):
        scores = [score(url, question["prompt"], choice) for choice in question["choices"]]
        # To the bit: what a request is answered does not depend on what runs beside it.
        assert [(float(value), greedy == "True") for ((value, greedy),) in sample["resps"]] == scores
        values = [value for value, _ in scores]
        by_length = [value / len(choice) for value, choice in zip(values, question["choices"], strict=True)]
        right += values.index(max(values)) == question["answer"]
        right_by_length += by_length.index(max(by_length)) == question["answer"]
    assert totals["acc,none"] == right / len(questions)
    assert totals["acc_norm,none"] == right_by_length / len(questions)
    assert right > 0
