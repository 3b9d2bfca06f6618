"""What is measured."""

from dataclasses import dataclass
from typing import Any

from jaxgen.config import CacheConfig, EngineConfig, OPTConfig, SchedulerConfig


@dataclass(frozen=True)
class Setting:
    """What is measured; lengths in tokens. ``calibrated``: prompt lengths at which the rates are measured."""

    model: OPTConfig
    block_size: int
    token_budget: int
    batch: int
    larger_batch: int
    prompts: tuple[int, ...]
    calibrated: tuple[int, ...]
    generate: tuple[int, ...]
    links: tuple[float | None, ...]
    """Bytes a second; None: the real one. Not of ``--smoke``, which chooses its own."""

    def prompt_steps(self, prompt: int, batch: int) -> int:
        """Steps that compute prompts, at most; those done first decode meanwhile."""
        return -(-batch * prompt // (self.token_budget - batch)) + 1

    def config(self) -> EngineConfig:
        prompt = max(*self.prompts, *self.calibrated)
        longest = prompt + max(self.generate) + self.prompt_steps(prompt, self.larger_batch)
        blocks = self.larger_batch * -(-longest // self.block_size)
        scheduler = SchedulerConfig(self.token_budget, self.larger_batch, longest, prefix_caching=False)
        return EngineConfig(
            CacheConfig(self.block_size, blocks), scheduler, seed=0, max_logit_bias=1, narrow_width=self.larger_batch
        )


def opt(**sizes: Any) -> OPTConfig:
    return OPTConfig(**sizes, intermediate_size=4 * sizes["hidden_size"], embed_size=sizes["hidden_size"])


SMOKE = Setting(
    opt(
        vocab_size=512,
        hidden_size=512,
        num_layers=6,
        num_heads=8,
        num_kv_heads=8,
        head_dim=64,
        max_position=512,
        dtype="float32",
    ),
    block_size=16,
    token_budget=256,
    batch=8,
    larger_batch=16,
    prompts=(128, 160),
    calibrated=(64, 192),
    generate=(16,),
    links=(None,),
)
PAPER = Setting(
    opt(
        vocab_size=50_272,
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        max_position=2048,
        dtype="float16",
    ),
    block_size=64,
    token_budget=512,
    batch=64,
    larger_batch=64,
    prompts=(128, 256, 512),
    calibrated=(192, 448),
    generate=(32, 128),
    links=(4e9, 16e9, 32e9, 64e9, None),
)
