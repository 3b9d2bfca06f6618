"""Values of the sampling parameters that a request leaves out. Host only, no jax."""

from dataclasses import asdict, dataclass

from jaxgen.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """A model's defaults; without any, the model's distribution as it is.

    Raises RequestRefusedError that names the field if a value is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """None: each route has its own."""

    def __post_init__(self) -> None:
        self.params()

    def params(self) -> SamplingParams:
        """Return parameters with these values, and the defaults of SamplingParams for all others."""
        return SamplingParams(**{name: value for name, value in asdict(self).items() if value is not None})


NEUTRAL = SamplingDefaults()
