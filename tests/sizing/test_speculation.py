"""Who has no drafts is told so by name, before anything is loaded."""

from dataclasses import replace
from typing import Any

import pytest

from jaxgen.core.config import EngineOptions, SchedulerConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.speculation import NgramConfig
from jaxgen.sizing.memory import check_options
from jaxgen.sizing.speculation import speculation_of
from tests.support.fake_runner import MODEL
from tests.support.hybrid import HYBRID

OPTIONS = EngineOptions(speculative_config='{"method": "ngram"}')
LIMITS = SchedulerConfig(16, 4, 64)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"is_cpu": False}, "needs a CPU: on a GPU a step begins before"),
        ({"model": HYBRID}, "needs a model whose layers all attend"),
        ({"streams": True}, "needs --kv-residency device"),
        ({"scheduler": replace(LIMITS, max_num_seqs=1)}, "needs --max-num-seqs 2 or more"),
    ],
)
def test_what_has_no_drafts_is_refused(changed: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"model": MODEL, "scheduler": LIMITS, "is_cpu": True, "streams": False} | changed
    with pytest.raises(ConfigError, match=f"^--speculative-config {says}"):
        speculation_of(OPTIONS, **given)
    assert speculation_of(EngineOptions(), **given) is None


def test_others_have_them() -> None:
    found = speculation_of(OPTIONS, MODEL, LIMITS, is_cpu=True, streams=False)
    assert found == NgramConfig()


def test_a_text_that_is_wrong_is_refused_first_of_all() -> None:
    with pytest.raises(ConfigError, match="is not valid JSON"):
        check_options(EngineOptions(speculative_config="ngram"))
