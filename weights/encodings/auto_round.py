"""AutoRound (arXiv 2309.05516), which writes tensors of GPTQ or AWQ under a method of its own. Host only, no jax."""

from jaxgen.weights.encodings.awq import read_awq
from jaxgen.weights.encodings.encoding import Encoding
from jaxgen.weights.encodings.gptq import read_gptq
from jaxgen.weights.families.config_fields import JsonFields


def read_auto_round(fields: JsonFields) -> tuple[Encoding, ...]:
    """Return the encoding that a configuration describes. Raises ConfigError.

    A packing of neither name is GPTQ's where weights are symmetric: their zero points show that it is.
    """
    fields.must_be("data_type", "int")
    name = "packing_format" if fields.get("packing_format") is not None else "backend"
    packing = str(fields.get(name) or "auto_round:auto_gptq")
    if "awq" in packing:
        return read_awq(fields)
    if "gptq" not in packing and not fields.boolean("sym", True):
        raise fields.error(name, f"is {packing!r}; supported: names with gptq or awq")
    return read_gptq(fields)
