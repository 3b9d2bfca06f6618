"""The type of fields that are integers, which languages with one type of numbers write as 16.0."""

from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

_NO_INTEGER: Final = "int_type"
"""Pydantic's own error for a value that is not an integer."""


def is_whole(value: Any) -> bool:
    """Whether the value is a float without a fraction."""
    return isinstance(value, float) and value.is_integer()


class _WholeFloats:
    """Makes an integer field take whole floats too, without a call of Python: a list may have a million."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # Not strict, an integer may be a text or a bool too: neither is a float.
        floats = core_schema.chain_schema([core_schema.float_schema(strict=True), core_schema.int_schema(strict=False)])
        return core_schema.union_schema([handler(source), floats], mode="left_to_right", custom_error_type=_NO_INTEGER)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core_schema.int_schema())


Integer = Annotated[int, _WholeFloats()]
