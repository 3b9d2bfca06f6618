"""Parameters of the rule by which rows choose tokens, and which parts of it a step's rows need."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from jaxgen.arrays import ArrayLike, Field
from jaxgen.core.sampling_params import WORK_OF, Sampling
from jaxgen.sampling.condition import Condition

_TINY = float(np.finfo(np.float32).tiny)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowParams:
    """SamplingParams of all rows as arrays. B: most bias entries of a row; E: most masked tokens.

    Values must be finite and in the ranges of SamplingParams; they are not checked here.
    """

    temperature: Float32[ArrayLike, "R"]
    top_p: Float32[ArrayLike, "R"]
    top_k: Int32[ArrayLike, "R"]
    """0: off."""
    min_p: Float32[ArrayLike, "R"]
    presence: Float32[ArrayLike, "R"]
    frequency: Float32[ArrayLike, "R"]
    repetition: Float32[ArrayLike, "R"]
    seed: UInt32[ArrayLike, "R 2"]
    """High and low word of a 64-bit seed."""
    bias_tokens: Int32[ArrayLike, "R B"]
    """Token ids, each once in a row; V in unused entries."""
    bias_values: Float32[ArrayLike, "R B"]
    """Added to the logits."""
    masked_tokens: Int32[ArrayLike, "R E"]
    """Token ids that are forbidden at positions below ``masked_until``; V in unused entries."""
    masked_until: Int32[ArrayLike, "R"]
    counted_from: Int32[ArrayLike, "R"]
    """Tokens from this position on are counted for penalties when they are computed; earlier ones were loaded."""
    constrained: Int32[ArrayLike, "R"]
    """1: only allowed tokens are chosen; see ``keep_allowed``."""

    @classmethod
    def fields(cls, max_bias: int, max_masked: int) -> dict[str, Field]:
        """Return the shape and type of one row of each array."""
        shapes = {"seed": (2,), "masked_tokens": (max_masked,)} | dict.fromkeys(
            ("bias_tokens", "bias_values"), (max_bias,)
        )
        integers = {"top_k", "bias_tokens", "masked_tokens", "masked_until", "counted_from", "constrained"}
        types = dict.fromkeys(integers, np.int32) | {"seed": np.uint32}
        return {name: (shapes.get(name, ()), types.get(name, np.float32)) for name in cls.__dataclass_fields__}

    @staticmethod
    def neutral_values(vocab_size: int) -> dict[str, int]:
        """Return the values other than 0 of a row that is greedy and leaves its logits unchanged."""
        return {"top_p": 1, "repetition": 1, "bias_tokens": vocab_size, "masked_tokens": vocab_size}

    @property
    def penalised(self) -> Bool[ArrayLike, "R"]:
        return (self.presence != 0) | (self.frequency != 0) | (self.repetition != 1)

    @property
    def drawn(self) -> Bool[ArrayLike, "R"]:
        """Whether tokens are drawn, since the temperature is not 0."""
        return self.temperature >= _TINY

    def limited(self, vocab_size: int) -> Bool[ArrayLike, "R"]:
        """Whether top_k is on and leaves out a token."""
        return (self.top_k > 0) & (self.top_k < vocab_size)


@dataclass(frozen=True)
class Needs:
    """Which parts of the rule any row of a step needs. Tokens are the same if a part runs that no row needs."""

    constrained: Condition
    penalised: Condition
    biased: Condition
    masked: Condition
    drawn: Condition
    limited: Condition
    """top_k is on."""
    nucleus: Condition
    """top_p is below 1."""

    @classmethod
    def of(cls, params: RowParams, positions: Int32[Array, "R"], vocab_size: int) -> "Needs":
        """Return what the rows need, computed by the program."""
        return cls(
            constrained=jnp.any(params.constrained != 0),
            penalised=jnp.any(params.penalised),
            biased=jnp.any(params.bias_tokens < vocab_size),
            masked=jnp.any(positions < params.masked_until),
            drawn=jnp.any(params.drawn),
            limited=jnp.any(params.limited(vocab_size)),
            nucleus=jnp.any(params.top_p < 1),
        )

    @classmethod
    def up_to(cls, sampling: Sampling) -> "Needs":
        """Return all that this much work includes, for a program without branches."""
        return cls(**{part: sampling >= work for part, work in WORK_OF.items()})
