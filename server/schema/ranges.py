"""Fields with the ranges and descriptions that /openapi.json shows.

They check nothing: parameters are checked where they are made, whose errors name the field, the range and the value.
"""

from typing import Annotated, Any

from pydantic import Field

from jaxgen.core.sampling_params import MAX_LOGPROBS
from jaxgen.server.schema.integers import Integer


def shown(description: str, **bounds: float) -> Any:
    """Return a field that is null where it is left out, with a description and a range."""
    return Field(None, description=description, json_schema_extra=dict(bounds))


MaxTokens = Annotated[Integer | None, shown("Most tokens of the answer.", minimum=0)]
MaxChatTokens = Annotated[Integer | None, shown("Most tokens of the answer.", minimum=1)]
Alternatives = Annotated[
    Integer | None, shown("Alternatives of each token, with their log-probabilities.", minimum=0, maximum=MAX_LOGPROBS)
]
