"""Encodings of weights in checkpoints, one in each module, and how config.json names them. Host only, no jax."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxgen.weights.encodings.auto_round import read_auto_round
from jaxgen.weights.encodings.awq import read_awq
from jaxgen.weights.encodings.compressed_tensors import read_compressed_tensors
from jaxgen.weights.encodings.encoding import Encoding
from jaxgen.weights.encodings.fp8 import read_fbgemm, read_fp8
from jaxgen.weights.encodings.gptq import read_gptq
from jaxgen.weights.encodings.modelopt import read_modelopt
from jaxgen.weights.encodings.mxfp4 import read_mxfp4
from jaxgen.weights.families.config_fields import JsonFields, text_part
from jaxgen.weights.files.file_names import CONFIG, QUANTIZATION_FILES
from jaxgen.weights.files.model_files import ModelFiles

METHODS: dict[str, Callable[[JsonFields], tuple[Encoding, ...]]] = {
    "awq": read_awq,
    "gptq": read_gptq,
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "compressed-tensors": read_compressed_tensors,
    "sparseml": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm,
    "fp8": read_fp8,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "mxfp4": read_mxfp4,
}
"""By ``quant_method``, the function that reads its configuration."""
_FIELD, _OLD_FIELD = "quantization_config", "compression_config"
"""The latter is that of the first versions of compressed-tensors."""
_HINTS = {"bitsandbytes": "; take the checkpoint that is not quantised, with --quantization int8 or int4"}


def encodings_of(files: ModelFiles) -> tuple[Encoding, ...]:
    """Return the encodings that a checkpoint's weights may have; none if its configuration names none.

    A weight may also be stored plainly. The names of the tensors say which weights have which encoding. Raises
    ConfigError for a method that is not read.
    """
    data, source = files.read_json(CONFIG), str(files.directory / CONFIG)
    parts = (data, text_part(data) or {})
    sections = ((name, value) for part in parts for name in (_FIELD, _OLD_FIELD) if (value := part.get(name)))
    name, section = next(sections, ("", None))
    if section is None:
        for file, method in QUANTIZATION_FILES.items():
            if files.path(file).exists():
                of_file = _plain(files.read_json(file))
                return _read(JsonFields(of_file, str(files.directory / file)), of_file.get("quant_method", method))
        return ()
    fields = JsonFields(data, source)
    if not isinstance(section, Mapping):
        raise fields.error(name, f"must be an object, not {section!r:.80}")
    usual = "compressed-tensors" if name == _OLD_FIELD else None
    return _read(fields.below(name, _plain(section)), section.get("quant_method", usual))


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what is null, and with numbers and truth that tools wrote as text."""
    return {name: _value(value) for name, value in section.items() if value is not None}


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
        return int(value)
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _read(fields: JsonFields, method: Any) -> tuple[Encoding, ...]:
    if not isinstance(method, str) or method not in METHODS:
        raise fields.error(
            "quant_method", f"is {method!r:.80}; supported: {', '.join(METHODS)}{_HINTS.get(str(method), '')}"
        )
    return METHODS[method](fields)
