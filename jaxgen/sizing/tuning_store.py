"""Keep measured step times: one JSON file for each device, model shape, dtype and version. Host only, no jax.

A measurement is valid only for the device, model and versions that it was made with, so they are in the file, and as a
hash in its name.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxgen.core.model_config import ModelConfig
from jaxgen.files.cache_files import find_json, keep_json, named_by
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.sizing.token_budget import TokenBudget, default_budget

_GENERATION = 3
"""Increased when kernels or the rule change so that old measurements would choose another budget than new ones."""


def subject(model: ModelConfig, device: DeviceInfo) -> dict[str, Any]:
    """Return all facts that a step time depends on and that can change between two starts."""
    return {
        "device": asdict(device),
        "model": {"family": type(model).__name__, **asdict(model)},
        "versions": {name: version(name) for name in ("jax", "jaxlib", "jaxgen")},
        "generation": _GENERATION,
    }


def record_path(folder: Path, model: ModelConfig, device: DeviceInfo) -> Path:
    """Return the path of the measurement of this model on this device, whether it exists or not."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{device.kind}-{model.dtype}".lower()).strip("-")
    return folder / f"{slug}-{named_by(subject(model, device), 16)}"


def save_record(folder: Path, model: ModelConfig, device: DeviceInfo, result: Mapping[str, Any]) -> Path:
    """Write a measurement, in place of an earlier one; ``result`` has at least ``token_budget``."""
    path = record_path(folder, model, device)
    keep_json(path, {**subject(model, device), **result})
    return path


def choose_budget(
    folder: Path | None, model: ModelConfig, device: DeviceInfo, *, skips_padding: bool = False, padded: str = ""
) -> TokenBudget:
    """Return the measured token budget, if ``folder`` has one, else that of the rule for the device.

    On a GPU what was measured with kernels that skip padding says nothing of others, and the reverse. ``padded``: as
    for the rule. A damaged file is removed, and a warning names it.
    """
    rule = default_budget(device, skips_padding=skips_padding, padded=padded, active_share=model.active_share)
    path = None if folder is None else record_path(folder, model, device)
    measured = find_json(path, "the token budget is that of the rule until jaxgen tune has run again")
    others = not device.is_cpu and measured is not None and measured["skips_padding"] != skips_padding
    if measured is None or others:
        return rule
    return replace(rule, tokens=measured["token_budget"], reason=f"measured by jaxgen tune ({path})")
