"""Devices and models for which kernels are chosen."""

from dataclasses import replace

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import GatedDeltaConfig
from jaxgen.core.moe_config import MoEConfig
from jaxgen.hardware.device_info import DeviceInfo
from tests.support.engines import LLAMA

CPU = DeviceInfo("cpu", "a processor", 2, ("avx2",))
AMX = DeviceInfo("cpu", "another", 2, ("amx_bf16", "amx_tile"))
HOPPER = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
ADA = DeviceInfo("gpu", "NVIDIA L4", 58, compute_capability=(8, 9))
B200 = DeviceInfo("gpu", "NVIDIA B200", 148, compute_capability=(10, 0))
RTX_50 = DeviceInfo("gpu", "NVIDIA GeForce RTX 5090", 170, compute_capability=(12, 0))
TURING = DeviceInfo("gpu", "Tesla T4", 40, compute_capability=(7, 5))
EXPERTS = replace(
    LLAMA, dtype="bfloat16", head_dim=64, hidden_size=128, moe=MoEConfig(experts=8, per_token=2, inner=64)
)


def with_nets(value_dim: int) -> DecoderConfig:
    """A model with gated delta nets."""
    nets = GatedDeltaConfig(key_heads=1, heads=2, key_dim=8, value_dim=value_dim, taps=4)
    return replace(LLAMA, layer_kinds=("delta", "attention"), delta=nets)
