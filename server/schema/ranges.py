"""Types of fields with the ranges and descriptions that /openapi.json shows.

They check nothing: parameters are checked where they are made, whose errors name the field, the range and the value.
"""

from typing import Annotated

from pydantic import Field
from pydantic.fields import FieldInfo

from jaxgen.core.request import MAX_PRIORITY
from jaxgen.core.sampling_params import MAX_LOGPROBS, MAX_SEED
from jaxgen.server.schema.integers import Integer


def _shown(description: str, **bounds: float) -> FieldInfo:
    result: FieldInfo = Field(description=description, json_schema_extra=dict(bounds))
    return result


Temperature = Annotated[
    float | None,
    _shown("How freely tokens are drawn; 0 takes the most probable one.", minimum=0, maximum=2),
]
TopP = Annotated[
    float | None,
    _shown(
        "Draw from the most probable tokens that make up this share; 0: the most probable one.", minimum=0, maximum=1
    ),
]
TopK = Annotated[
    Integer | None, _shown("Draw from this number of most probable tokens; 0 or -1: from all.", minimum=-1)
]
MinP = Annotated[
    float | None,
    _shown("Leave out tokens below this share of the most probable one's probability.", minimum=0, maximum=1),
]
FrequencyPenalty = Annotated[
    float | None, _shown("Lowers a token's logit by this for each time the answer has it.", minimum=-2, maximum=2)
]
PresencePenalty = Annotated[
    float | None, _shown("Lowers a token's logit by this once the answer has it.", minimum=-2, maximum=2)
]
RepetitionPenalty = Annotated[
    float | None,
    _shown("Divides the logits of tokens that prompt or answer have; 1: off.", exclusiveMinimum=0, maximum=10),
]
Seed = Annotated[
    Integer | None,
    _shown(
        "The same request with the same seed: the same bits. -1: a random seed.",
        minimum=-MAX_SEED - 1,
        maximum=MAX_SEED,
    ),
]
Priority = Annotated[Integer | None, _shown("Lower is served first.", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)]
MaxTokens = Annotated[Integer | None, _shown("Most tokens of the answer.", minimum=0)]
MaxChatTokens = Annotated[Integer | None, _shown("Most tokens of the answer.", minimum=1)]
MinTokens = Annotated[Integer | None, _shown("Tokens before which the answer does not end by itself.", minimum=0)]
Alternatives = Annotated[
    Integer | None, _shown("Alternatives of each token, with their log-probabilities.", minimum=0, maximum=MAX_LOGPROBS)
]
