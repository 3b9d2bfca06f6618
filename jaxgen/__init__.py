"""jaxgen: an LLM engine whose every step is one compiled shape.

``from jaxgen import LLM`` runs the engine inside a program. JAX is imported on first use of ``LLM``, so that host-side
modules (scheduler, tokenizer, request types) can be imported without it.
"""

TYPE_CHECKING = False  # not from typing, whose import takes half of the time until a server handles signals

if TYPE_CHECKING:
    from jaxgen.core.sampling_params import SamplingParams
    from jaxgen.llm import LLM

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from jaxgen.llm import LLM

        return LLM
    if name == "SamplingParams":
        from jaxgen.core.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'jaxgen' has no attribute {name!r}")
