"""A digest is of the parts' values alone."""

from typing import Any

from jaxgen.core.identity import DIGITS, UNKNOWN, Identity


def test_a_digest_names_values_not_their_order() -> None:
    one, other = (
        Identity({"a": 1, "b": [2, {"c": None, "d": "x"}]}),
        Identity({"b": [2, {"d": "x", "c": None}], "a": 1}),
    )
    assert one.digest == other.digest
    assert len(one.digest) == DIGITS
    assert set(one.digest) <= set("0123456789abcdef")
    assert Identity({"a": 1, "b": [2, {"c": None, "d": "y"}]}).digest != one.digest


def test_a_digest_stays_what_it_was() -> None:
    """What is kept under one, as another process's cache, would be lost otherwise."""
    assert Identity({"a": (1, "é")}).digest == Identity({"a": [1, "é"]}).digest == "83a175c500b5b96c"


def test_an_engine_that_nobody_asked_has_none() -> None:
    assert (UNKNOWN.digest, dict(UNKNOWN.parts)) == ("", {})


def test_blocks_outlive_another_template_and_amount_of_memory_but_no_other_part() -> None:
    parts: dict[str, Any] = {
        "weights": "a",
        "texts": {"chat": "b"},
        "steps": {"num_blocks": 1, "max_model_len": 2, "block_size": 3},
    }
    namespace = Identity(parts).kv_namespace
    alike = {
        **parts,
        "texts": {},
        "steps": {"num_blocks": 9, "window_blocks": [4], "max_model_len": 8, "block_size": 3},
    }
    assert Identity(alike).kv_namespace == namespace
    assert Identity({**parts, "weights": "c"}).kv_namespace != namespace
    assert Identity({**parts, "steps": {**parts["steps"], "block_size": 4}}).kv_namespace != namespace
