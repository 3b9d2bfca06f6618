"""Configurations of models on the hub are read as they are: none is refused for a field that its file has."""

import pytest

from jaxgen.weights.families.registry import FAMILIES
from jaxgen.weights.summary import in_short, num_parameters
from tests.support.hub_configs import HUB, described


@pytest.mark.parametrize("name", HUB)
def test_a_model_of_the_hub_is_read_and_has_its_size_and_its_context(name: str) -> None:
    """A field for the context that is not read leaves a shorter one."""
    config = described(name)
    assert (in_short(num_parameters(config)), config.max_position) == (HUB[name].parameters, HUB[name].context)


def test_each_family_has_one() -> None:
    assert {described(name).family for name in HUB} == set(FAMILIES)
