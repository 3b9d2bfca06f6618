"""``--target`` names the one GPU that this process compiles for."""

import pytest

from tests.aot.target import TARGETS, Target


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", required=True, choices=sorted(TARGETS))


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.config.getoption("--target")]
