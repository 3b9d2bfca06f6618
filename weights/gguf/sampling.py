"""Read the sampling defaults of a GGUF file as generation_config.json has them. Host only, no jax."""

import logging
from typing import Any

from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.packaged.models import packaged_as

logger = logging.getLogger(__name__)

_SAMPLING = "general.sampling."
_FIELDS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Fields of generation_config.json, by their names in the file."""


def sampling_of(file: GgufFile) -> dict[str, Any]:
    """Return the fields of generation_config.json that the file gives defaults of, and log what it says in vain.

    A packaged model's file gets the defaults of the model's card too. Values out of range are left out, with a warning,
    when requests are given them.
    """
    stored = {
        key.removeprefix(_SAMPLING): value for key, value in file.fields.data.items() if key.startswith(_SAMPLING)
    }
    others = sorted(key for key, value in stored.items() if key not in _FIELDS and value)
    if others:
        logger.warning("%s: %s%s: not used", file.path, _SAMPLING, f", {_SAMPLING}".join(others))
    known = packaged_as(file.path)
    of_card = {} if known is None else known.sampling
    return {**of_card, **{name: stored[key] for key, name in _FIELDS.items() if key in stored}}
