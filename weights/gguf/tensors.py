"""Read the tensors of a GGUF file as the parts of parameters. Host only, no jax."""

import logging
import re
from dataclasses import replace
from typing import Any

import numpy as np

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import WeightFormat
from jaxgen.weights.gguf import rope
from jaxgen.weights.gguf.architectures import Architecture
from jaxgen.weights.gguf.codes import codes_of, kept_form
from jaxgen.weights.gguf.file import NUMBERS, GgufFile
from jaxgen.weights.quantize import quantized
from jaxgen.weights.row_orders import interleaved_keys, interleaved_queries
from jaxgen.weights.tensors import Parameter, Source, Value
from jaxgen.weights.weight_formats import EMBEDDINGS, PRODUCTS

logger = logging.getLogger(__name__)

_NAMED = 3


class GgufTensors:
    """The tensors of a GGUF file, for ``hf_checkpoint.read_parameters``: one at a time is dequantised."""

    def __init__(self, file: GgufFile, architecture: Architecture, config: DecoderConfig) -> None:
        self._file = file
        self._architecture = architecture
        self._rows: dict[str, tuple[int, ...]] = {}
        if architecture.rotated:
            self._rows = {"q_proj": interleaved_queries(config), "k_proj": interleaved_keys(config)}

    def check(self, table: tuple[Parameter, ...], unread: re.Pattern[str] | None) -> None:
        """Raise ConfigError unless the file has exactly the table's tensors, with their shapes, of known types."""
        del unread  # names of a Hugging Face checkpoint
        used = {self._check(source) for parameter in table for source, _ in parameter.pieces()}
        extra = sorted(self._file.tensors.keys() - used - set(rope.TENSORS))
        if extra:
            more = f" and {len(extra) - _NAMED} more" if len(extra) > _NAMED else ""
            raise ConfigError(
                f"{self._file.path}: its metadata describe a model without the tensors {', '.join(extra[:_NAMED])}"
                f"{more}; they belong to another architecture or option"
            )

    def _check(self, source: Source) -> str:
        name = self._architecture.stored_name(source.name)
        stored = self._file.tensors.get(name)
        if stored is None:
            raise ConfigError(f"{self._file.path}: the tensor {name} is missing")
        if stored.shape != source.shape:
            found, wanted = list(stored.shape), list(source.shape)
            raise ConfigError(f"{stored.part}: {name} has shape {found}, but the metadata mean {wanted}")
        if not stored.can_be_dequantised():
            raise ConfigError(f"{stored.part}: {name} is of type {stored.kind.name}, which cannot be dequantised")
        return name

    def kept_formats(self, table: tuple[Parameter, ...]) -> dict[str, WeightFormat]:
        """Return the formats of the parameters that are kept as codes, with the numbers that they have in the file.

        The log names those that are dequantised although their types are those of codes. Raises ConfigError for a
        tensor that is missing.
        """
        found: dict[str, WeightFormat] = {}
        for parameter in table:
            if parameter.path not in (*PRODUCTS, *EMBEDDINGS):
                continue
            sources = [source for source, _ in parameter.pieces()]
            tensors = [self._file.tensors[self._check(source)] for source in sources]
            form = None if any(source.transposed for source in sources) else kept_form(tensors)
            kinds = sorted({one.kind.name for one in tensors})
            if form is not None:
                found[parameter.path] = form
            elif any(kind not in NUMBERS for kind in kinds):
                logger.info("%s: dequantised: %s (%s)", self._file.path, parameter.path, ", ".join(kinds))
        return found

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any], form: WeightFormat | None) -> Value:
        """Return a tensor as its part of the parameter: in ``form`` if that is one, else in ``dtype``.

        A format that ``kept_formats`` has found has the file's codes; to others numbers are rounded. What ``parameter``
        adds to weights of norms is in the file's numbers already. Raises ConfigError for values beyond float16.
        """
        del parameter
        name = self._architecture.stored_name(source.name)
        stored = self._file.tensors[name]
        source = replace(source, rows=self._rows.get(source.name.split(".")[-2], source.rows))
        if form is not None:
            try:
                weight = codes_of([stored], form)
            except ValueError as error:
                raise ConfigError(f"{stored.part}: {name} {error}") from error
            if weight is not None:
                return source.ordered_weight(weight)
        values = stored.dequantised(dtype)
        if dtype == np.float16 and not np.isfinite(values).all():
            raise ConfigError(
                f"{stored.part}: {name} has values that float16 cannot hold; use --dtype bfloat16 or float32"
            )
        placed = source.placed(values)
        return placed if form is None else quantized(placed, form, f"{stored.part}: {name}")
