"""The description of a tiny model of which some layers have states, without parameters."""

from dataclasses import dataclass

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import NormConfig, PositionConfig, RopeConfig
from jaxgen.core.model_config import StateShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(DecoderConfig):
    """Two of three layers have states."""

    @property
    def states(self) -> tuple[StateShape, ...]:
        return (StateShape("conv", (0, 2), (2, 4), "float32"), StateShape("sums", (2,), (3,), "bfloat16"))


HYBRID = Hybrid(
    family="llama",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=8,
    num_layers=3,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position=64,
    dtype="float32",
    norm=NormConfig(eps=1e-5),
    positions=PositionConfig(ropes=(RopeConfig(),)),
)
