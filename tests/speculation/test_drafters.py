"""Each method has its drafter."""

import pytest

from jaxgen.core.speculation import METHODS, parse_speculation
from jaxgen.scheduling.drafts import Drafter
from jaxgen.speculation.drafters import drafter_of
from jaxgen.speculation.lookup import LookupDrafter
from jaxgen.speculation.suffix import SuffixDrafter

DRAFTERS = {"ngram": LookupDrafter, "suffix": SuffixDrafter}


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_its_drafter(method: str) -> None:
    config = parse_speculation(f'{{"method": "{method}"}}')
    assert config is not None
    drafter = drafter_of(config)
    assert isinstance(drafter, DRAFTERS[method])
    assert isinstance(drafter, Drafter)
