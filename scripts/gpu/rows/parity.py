"""Compare logits and greedy tokens of the golden checkpoints with recorded ones, on the device."""

from typing import Any

from scripts.gpu.result.report import Measurement
from scripts.gpu.rows.bench import Bench
from tests.support.golden_runs import LOGIT_TOLERANCE, SMALL, greedy_tokens, load_golden, relative_logit_error
from tests.support.goldens import golden_answers


def greedy(_: Bench, name: str) -> Measurement:
    config, params = load_golden(name)
    answers = golden_answers(name)
    got, _stats = greedy_tokens(config, params, answers, SMALL)
    wrong = [i for i, (tokens, answer) in enumerate(zip(got, answers, strict=True)) if tokens != answer.greedy]
    detail: dict[str, Any] = {"prompts": len(answers), "tokens": sum(map(len, got)), "wrong_prompts": wrong}
    failure = f"greedy tokens of prompts {wrong} differ from the recorded ones" if wrong else None
    return Measurement(detail=detail, failure=failure)


def logits(_: Bench, name: str) -> Measurement:
    config, params = load_golden(name)
    error = relative_logit_error(config, params, golden_answers(name), SMALL)
    # Written so that a NaN fails.
    failure = None if error < LOGIT_TOLERANCE else f"relative error of logits {error:.1e}, limit {LOGIT_TOLERANCE:.0e}"
    return Measurement(detail={"relative_error": error, "limit": LOGIT_TOLERANCE}, failure=failure)
