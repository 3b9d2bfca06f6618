"""``--target`` names the one GPU that this process compiles for."""

import pytest

from tests.aot.cases import AMPERE, BLACKWELL, Case
from tests.aot.target import TARGETS, Target


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", required=True, choices=sorted(TARGETS))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For each GPU the kernels that it can have: others are refused in words of all kinds. Blackwell has no other test.
    Which operands are aligned hangs on sizes and hardly on the GPU, so that of Ampere is asked about one size.
    ``only``: the major version of the one GPU that a test is for, where another would show the same."""
    major = TARGETS[config.getoption("--target")].major
    kept = [item for item in items if _is_for(item, major)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _is_for(item: pytest.Item, major: int) -> bool:
    assert isinstance(item, pytest.Function)
    only = item.get_closest_marker("only")
    if only is not None and only.args != (major,):
        return False
    params = item.callspec.params if hasattr(item, "callspec") else {}
    case = params.get("case")
    if major == AMPERE and "max_num_seqs" in params:
        return bool((params["max_num_seqs"], params.get("width", 256)) == (64, 256))
    if isinstance(case, Case):
        return case.needs is None or major in case.needs
    return major not in BLACKWELL


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.config.getoption("--target")]
