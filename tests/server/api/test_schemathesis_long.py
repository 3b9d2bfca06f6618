"""More requests that schemathesis draws from /openapi.json; test_schemathesis has those at the limits of each field.

In a file of its own: to collect those takes seconds of each process.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.server.api.test_schemathesis import SETTINGS, check, operations


@pytest.mark.full
@pytest.mark.parametrize("operation", [pytest.param(one, id=one.label) for one in operations()])
def test_answers_are_as_described(operation: Any) -> None:
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])
    settings(max_examples=60, **SETTINGS)(given(case=cases)(check))()
