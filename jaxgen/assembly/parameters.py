"""Load a resolved model's parameters in the layout that its kernels read, and keep them for the next start."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxgen.assembly.digest import sources_digest
from jaxgen.assembly.kernels import choose_kernels
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.core.division import Division
from jaxgen.core.identity import digest_of
from jaxgen.files.digested_files import DigestedFiles
from jaxgen.hardware.nvidia import versions
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.dummy import dummy_params
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import Place, abstract_packed_params, placing
from jaxgen.models.prepared_params import read_prepared, write_prepared
from jaxgen.runner.devices import Devices, on_each
from jaxgen.weights.files.checksums import Checksum
from jaxgen.weights.load import load_params, load_shares, weights_digest

logger = logging.getLogger(__name__)


def load_model(resolved: ResolvedModel, *, block_size: int, progress: bool) -> tuple[Kernels, PackedParams]:
    """Return the device's kernels, and the parameters in their layout. Raises ConfigError."""
    kernels = choose_kernels(resolved, block_size, progress=progress)
    files = None if _prepared_folder(resolved) is None else weight_files(resolved, progress=progress)
    return kernels, load_parameters(resolved, kernels, files, progress=progress)


def weight_files(resolved: ResolvedModel, *, progress: bool) -> DigestedFiles:
    """Return the weight files with their digest, or that of random weights, which the configuration determines.

    Another look at them reads no file again that has not changed. Raises ConfigError.
    """
    what = f"the weights in {resolved.directory}"
    if resolved.load_format == "dummy":
        return DigestedFiles.of(what, lambda: digest_of({"load_format": resolved.load_format}))
    known: dict[Path, Checksum] = {}
    take = partial(weights_digest, resolved.directory, resolved.caches.checksums, known=known, progress=progress)
    return DigestedFiles.of(what, take)


def load_parameters(
    resolved: ResolvedModel, kernels: Kernels, files: DigestedFiles | None, *, progress: bool
) -> PackedParams:
    """Return the parameters in the layout of these kernels.

    ``files``: those of the weights, after which prepared parameters are named; None: these are neither read nor
    written. Raises ConfigError, also where ``files`` change.
    """
    _warn_of_dequantised(resolved, kernels)
    if resolved.load_format == "dummy":
        logger.warning("weights are random numbers (--load-format dummy): answers mean nothing")
        return on_each(Devices.of(resolved.model), lambda: dummy_params(resolved.model, kernels))
    place, path = placing(resolved.model, kernels), _prepared_path(resolved, kernels, files)
    if resolved.division is not None:
        return _load_divided(resolved, resolved.division, place, files, progress=progress)
    params = None if path is None else read_prepared(path, abstract_packed_params(resolved.model, kernels))
    if params is None:
        params = load_params(resolved.directory, resolved.model, place=place, progress=progress)
        if files is not None:
            files.check()
        if path is not None:
            write_prepared(path, params)
    return params


def _load_divided(
    resolved: ResolvedModel, division: Division, place: Place, files: DigestedFiles | None, *, progress: bool
) -> PackedParams:
    """Return what each device has of the parameters, in the layout of its kernels."""
    devices = Devices.of(division.part)
    assert devices is not None, "several have a part each"

    def place_shares(path: str, read: Callable[[int], Any]) -> Any:
        placed: PackedParams = devices.on_each(lambda rank: {path: jax.block_until_ready(place(path, read(rank)))})
        return placed[path]

    params = load_shares(resolved.directory, division, place=place_shares, progress=progress)
    if files is not None:
        files.check()
    return params


def _warn_of_dequantised(resolved: ResolvedModel, kernels: Kernels) -> None:
    """Log which formats of weights the kernels do not multiply as they are."""
    formats = {form for _, parts in resolved.model.weight_formats for form in parts.forms}
    if numbers := sorted({form.title for form in formats if kernels.placed(form) is None}):
        logger.warning(
            "weights in %s become %s when they are loaded, and take as much memory and time as others: the %s "
            "kernels do not multiply them as they are",
            " and ".join(numbers),
            resolved.model.dtype,
            kernels.name,
        )


def _prepared_folder(resolved: ResolvedModel) -> Path | None:
    """Return the folder of parameters as programs read them; None: none are kept."""
    kept = resolved.device.is_cpu and resolved.load_format != "dummy" and resolved.division is None
    return resolved.caches.prepared if kept else None


def _prepared_path(resolved: ResolvedModel, kernels: Kernels, files: DigestedFiles | None) -> Path | None:
    """Return the file of prepared parameters, which is named by all that prepares them; None: none are kept."""
    folder = _prepared_folder(resolved)
    if folder is None or files is None:
        return None
    key = {
        "weights": files.digest,
        "model": repr(resolved.model),
        "kernels": [kernels.name, *kernels.build],
        "sources": sources_digest(),
        "versions": versions(("jaxlib",)),
    }
    return folder / digest_of(key)
