"""python -m scripts.gpu.wheels: what a machine lacks of what the server needs."""

from importlib.metadata import version

from scripts.gpu.wheels import missing, names_in


def test_all_that_the_server_imports_is_among_what_is_missing() -> None:
    """Also what is named for uvicorn alone, which does not need it."""
    found = missing("jaxgen", set())
    assert {"starlette", "uvicorn", "httptools", "configargparse", "pydantic-core", "llguidance"} <= found.keys()
    assert found["starlette"] == version("starlette")
    assert "pytest" not in found


def test_what_is_there_is_not_collected_but_extras_of_it_are() -> None:
    have = names_in("jax, numpy\nPydantic_Core  uvicorn")
    assert have == {"jax", "numpy", "pydantic-core", "uvicorn"}
    found = missing("jaxgen", have)
    assert have.isdisjoint(found)
    assert "httptools" in found
