"""The groups of the server's configuration: what their numbers may be, and that a name is in one group alone."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import DEFAULT_CONFIG, Log
from jaxgen.server.limits import Availability, Batches, Connections, Limits, Queue, Responses

LIMITED = (Limits, Queue, Connections, Batches, Responses, Availability, Log)
MAY_BE_ZERO = {"max_logit_bias", "inline_encode_chars", "sse_ping_interval_s", "max_stored_responses"}
NUMBERS = {
    item.name: group for group in LIMITED for item in fields(group) if item.name not in ("batch_dir", "log_prompts")
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_positive_and_finite(name: str) -> None:
    group: Any = NUMBERS[name]
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=f"^{name} must be "):
            group(**{name: wrong})
    if name in MAY_BE_ZERO:
        group(**{name: 0})
    else:
        with pytest.raises(ConfigError, match=f"^{name} must be more than 0, not 0$"):
            group(**{name: 0})


def test_a_name_is_in_one_group_alone() -> None:
    """Flags and errors name fields without their group."""
    groups = [item.name for item in fields(DEFAULT_CONFIG) if is_dataclass(getattr(DEFAULT_CONFIG, item.name))]
    names = [item.name for group in groups for item in fields(getattr(DEFAULT_CONFIG, group))]
    assert len(groups) == 10
    assert len(set(names)) == len(names)
