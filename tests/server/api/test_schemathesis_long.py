"""More requests that schemathesis draws from /openapi.json, and those at the limits of each field."""

import pytest
from hypothesis import settings
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.pytest._test_builder import build_operation_test

from tests.server.api.test_schemathesis import EVERY_ROUTE, SETTINGS, check, schema


@pytest.mark.full
@pytest.mark.parametrize(("path", "method"), EVERY_ROUTE)
def test_answers_are_as_described(path: str, method: str) -> None:
    """Made here: what ``schema.parametrize`` makes takes seconds of each process that collects tests."""
    test = build_operation_test(
        config=schema().config,
        operation=schema()[path][method],
        test_func=check,
        given_kwargs={},
        feedback=NO_FEEDBACK,
        explicit_settings=settings(max_examples=60, **SETTINGS),
    )
    test()
