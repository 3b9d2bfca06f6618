"""Read sampling defaults from ``generation_config.json``, as vLLM does. Host only, no jax."""

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.core.sampling_params import NEUTRAL, SamplingDefaults
from jaxgen.weights.files.file_names import GENERATION_CONFIG
from jaxgen.weights.files.model_files import ModelFiles

logger = logging.getLogger(__name__)

OFF = ("none", "vllm")
"""Words for no file; the latter is vLLM's own."""
_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Fields of SamplingDefaults by their names in the file. ``do_sample`` is ignored: a request says temperature 0."""


def read_sampling_defaults(directory: Path, choice: str = "auto") -> SamplingDefaults:
    """Return the defaults of a model directory, and log the defaults that change something.

    ``choice``: "auto": those of its own file, of which a value that is out of range is left out with a warning; "none"
    or "vllm": none; else a directory with another file. Raises ConfigError for a directory without a file, and for one
    whose values are out of range.
    """
    if choice in OFF:
        return NEUTRAL
    own = choice == "auto"
    files = ModelFiles(directory if own else Path(choice).expanduser())
    file = files.path(GENERATION_CONFIG)
    if not file.is_file():
        if own:
            return NEUTRAL
        raise ConfigError(f"--generation-config {choice}: there is no {file}; write auto, none or a directory with one")
    defaults = NEUTRAL
    for name, value in files.read_json(GENERATION_CONFIG).items():
        if name not in _FIELDS or value is None:
            continue
        try:
            defaults = _with(defaults, name, value)
        except (RequestRefusedError, TypeError) as error:
            if not own:
                raise ConfigError(f"{file}: {error}") from error
            logger.warning("%s: %s; it is left out", file, error)
    if defaults != NEUTRAL:
        logger.info(
            "requests that leave them out get %s, from %s (--generation-config none: not)", shown(defaults), file
        )
    return defaults


def shown(defaults: SamplingDefaults) -> str:
    """Return the values that change something, as a log line has them."""
    neutral = asdict(NEUTRAL)
    return ", ".join(f"{name} {value:g}" for name, value in asdict(defaults).items() if value != neutral[name])


def _with(defaults: SamplingDefaults, name: str, value: Any) -> SamplingDefaults:
    whole = name in ("top_k", "max_new_tokens")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise TypeError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")
    if name == "top_k":
        value = max(value, 0)  # -1 means off too
    if name == "max_new_tokens" and value < 1:
        raise TypeError(f"{name} must be 1 or more, not {value}")
    if not whole:
        value = float(value)
    return replace(defaults, **{_FIELDS[name]: value})
