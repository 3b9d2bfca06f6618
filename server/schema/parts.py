"""Parts of a message's content other than text."""

from typing import Any, NoReturn

from pydantic_core import PydanticCustomError


def refuse_part(kind: Any) -> NoReturn:
    """Refuse a part by its type."""
    raise PydanticCustomError(
        "no_text", "parts of the type {kind} are not supported: send text", {"kind": repr(str(kind)[:100])}
    )
