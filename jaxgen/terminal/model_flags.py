"""The flags that say which model a command loads, and in which dtype. Host only, no jax."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxgen.core.config import KERNEL_CHOICES, LOAD_FORMATS, HubOptions
from jaxgen.core.kv_dtype import KV_DTYPE_ALIASES, KV_DTYPES
from jaxgen.core.model_config import DTYPES
from jaxgen.core.quantization import QUANTIZATIONS, Quantization

DTYPE_ALIASES = {"half": "float16", "float": "float32"}
DTYPE_CHOICES = ("auto", *DTYPES)


def add_model_flag(group: Any) -> None:
    """Add ``--model``, which commands take without the flag too."""
    group.add_argument(
        "--model",
        help="directory, GGUF file, Hugging Face name (REPOSITORY:Q4_K_M for GGUF files), or a name that jaxgen models "
        "lists; the flag itself may be left out (default: the demo model)",
    )


def add_hub_flags(group: Any) -> None:
    """Add what is said of a model on the hub."""
    group.add_argument("--revision", help="branch, tag or commit of a Hugging Face model (default: its main branch)")
    group.add_argument(
        "--download-dir",
        type=Path,
        metavar="DIR",
        help="directory for Hugging Face models (default: the Hugging Face cache, HF_HOME)",
    )


def add_dtype_flag(group: Any, what: str) -> None:
    """Add ``--dtype``; ``what``: its help."""
    names = ", ".join(f"{alias}: {name}" for alias, name in DTYPE_ALIASES.items())
    group.add_argument("--dtype", type=_dtype, choices=DTYPE_CHOICES, default="auto", help=f"{what}; {names}")


def add_quantization_flag(group: Any, what: str, choices: Sequence[Quantization] = QUANTIZATIONS) -> None:
    """Add ``--quantization``; ``what``: its help."""
    group.add_argument("--quantization", choices=choices, default="none", help=what)


def add_load_format_flag(group: Any, what: str) -> None:
    """Add ``--load-format``; ``what``: its help."""
    group.add_argument("--load-format", choices=LOAD_FORMATS, default="auto", help=what)


def add_kv_cache_dtype_flag(group: Any, what: str) -> None:
    """Add ``--kv-cache-dtype``; ``what``: its help."""
    names = ", ".join(f"{alias}: {name}" for alias, name in KV_DTYPE_ALIASES.items())
    group.add_argument("--kv-cache-dtype", type=_kv_dtype, choices=KV_DTYPES, default="auto", help=f"{what}; {names}")


def add_loading_flags(group: Any) -> None:
    """Add what commands share with ``jaxgen serve`` that load a model to measure or check it."""
    add_model_flag(group)
    add_hub_flags(group)
    add_load_format_flag(group, "as for jaxgen serve")
    add_dtype_flag(group, "as for jaxgen serve")
    add_quantization_flag(group, "as for jaxgen serve")
    group.add_argument("--kernels", choices=KERNEL_CHOICES, default="auto", help="as for jaxgen serve")
    add_kv_cache_dtype_flag(group, "as for jaxgen serve")
    group.add_argument("--cache-dir", type=Path, metavar="DIR", help="as for jaxgen serve")


def hub_options(args: Any) -> HubOptions:
    """Return what the flags say of the hub."""
    return HubOptions(revision=args.revision, download_dir=args.download_dir)


def _kv_dtype(text: str) -> str:
    return KV_DTYPE_ALIASES.get(text, text)


def _dtype(text: str) -> str:
    return DTYPE_ALIASES.get(text, text)
