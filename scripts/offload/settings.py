"""What is measured."""

from dataclasses import dataclass, replace
from typing import Any

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig, llama_config, opt_config
from jaxgen.core.decoder_parts import RopeConfig

PAPERS_LINKS = (4e9, 16e9, 32e9, 64e9, 450e9)
PROJECTION_PART = 0.3
"""Seconds to project a token over seconds to transfer its KV, for scaled links where none is named: the paper's
OPT-6.7B and A100 behind 23 GB/s, which is what PCIe 4.0 carries in practice."""


def projection_part(link: float) -> float:
    """Seconds to project a token of OPT-6.7B over those to transfer its KV: 312 TFLOP/s behind ``link`` bytes a second,
    0.42 for the paper's 32 GB/s."""
    hidden, itemsize = 4096, 2
    return (4 * hidden**2 / 312e12) / (2 * hidden * itemsize / link)


@dataclass(frozen=True)
class Setting:
    """What is measured; lengths in tokens. ``calibrated``: prompt lengths at which the rates are measured."""

    model: DecoderConfig
    block_size: int
    token_budget: int
    batch: int
    larger_batch: int
    prompts: tuple[int, ...]
    calibrated: tuple[int, ...]
    generate: tuple[int, ...]
    scaled: bool
    """Whether links are simulated, slower than the paper's by as much as projecting is here; else the machine's own
    link, except in the table of links."""
    restored: tuple[DecoderConfig, ...] = ()
    """Models of contexts that come back: one with as many KV heads as heads, and one with fewer."""
    restored_tokens: int = 16_384
    restored_budget: int = 512
    links: tuple[float, ...] = PAPERS_LINKS
    calibrating_steps: int = 4

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


def opt(**sizes: Any) -> DecoderConfig:
    return opt_config(**sizes, intermediate_size=4 * sizes["hidden_size"], embed_size=sizes["hidden_size"])


def llama(
    heads: int, kv_heads: int, head_dim: int, num_layers: int, intermediate_size: int, dtype: Any
) -> DecoderConfig:
    return llama_config(
        vocab_size=2048,
        hidden_size=heads * head_dim,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=131_072,
        dtype=dtype,
        norm_eps=1e-5,
        rope=RopeConfig(),
    )


SMALL = opt(
    vocab_size=512,
    hidden_size=512,
    num_layers=6,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    max_position=512,
    dtype="float32",
)
SMOKE = Setting(
    SMALL,
    block_size=16,
    token_budget=256,
    batch=8,
    larger_batch=16,
    prompts=(128, 160),
    calibrated=(64, 192),
    generate=(12,),
    scaled=True,
)
SMALL_SETTING = replace(
    SMOKE,
    prompts=(128, 256),
    calibrated=(64, 192),
    generate=(8, 24),
    restored=(llama(6, 6, 32, 6, 512, "float32"), llama(6, 2, 32, 6, 512, "float32")),
    restored_budget=256,
)
"""What a CPU can measure in about 20 minutes."""


def papers(hidden_size: int, num_layers: int) -> Setting:
    """The paper's lengths and batches, for an OPT of this size in float16."""
    model = opt(
        vocab_size=50_272,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 128,
        num_kv_heads=hidden_size // 128,
        head_dim=128,
        max_position=2048,
        dtype="float16",
    )
    return Setting(
        model,
        block_size=64,
        token_budget=512,
        batch=64,
        larger_batch=64,
        prompts=(128, 256, 512),
        calibrated=(192, 448),
        generate=(32, 128),
        scaled=False,
        calibrating_steps=6,
        restored=(llama(32, 32, 128, 32, 11_008, "bfloat16"), llama(32, 8, 128, 32, 14_336, "bfloat16")),
    )


SETTINGS = {
    "small": SMALL_SETTING,
    "opt-6.7b": papers(4096, 32),
    "opt-13b": papers(5120, 40),
    "opt-30b": papers(7168, 48),
}
