"""The configurations of kernels and steps that a row needs."""

from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.proving.verdict import ExpertShapes
from pallas_kernels.gpu.attention.items import best_tile_groups, value_slices
from scripts.gpu.result.plan import attention_configuration
from scripts.gpu.rows.work import PIECES, TILES, AttentionLoad
from tests.support.attention_cases import Case

MULTIPROCESSORS = 132
"""Multiprocessors of an H200: their number decides which kernels a load needs."""
WRITE_KV = "write_kv"
EXPERTS = "expert_product"
DENSE = "dense_product"


def attention_needs(heads: int, kv_heads: int, head_dim: int, tokens: int) -> tuple[str, ...]:
    """Return the configurations of the kernels that attention launches in a step of ``tokens`` tokens."""
    slices = value_slices(head_dim)
    tiles = slices * best_tile_groups(tokens, heads // kv_heads, kv_heads, head_dim, MULTIPROCESSORS)
    return attention_configuration(PIECES, head_dim, slices), attention_configuration(TILES, head_dim, tiles)


def step_configuration(tokens: int, rows: int) -> str:
    """Return the configuration of a step, for every depth of its model."""
    return f"step of {tokens} tokens and {rows} rows"


def served_rows(budget: int) -> int:
    """Return the number of rows that a step of a server on a GPU has by default."""
    return min(budget, 256)


def of_model(model: ModelConfig, tokens: int) -> tuple[str, ...]:
    """Return the configurations that a model's step needs; none of a coded KV cache, which no other row has."""
    if model.kv_dtype != "auto":
        return ()
    experts = () if ExpertShapes.of(model) is None else (EXPERTS,)
    return (WRITE_KV, *attention_needs(model.num_heads, model.num_kv_heads, model.head_dim, tokens), *experts)


def of_case(case: Case, tokens: int) -> tuple[str, ...]:
    return attention_needs(case.heads, case.kv_heads, case.head_dim, tokens)


def of_load(load: AttentionLoad) -> tuple[str, ...]:
    return of_model(load.model, sum(length for length, _ in load.rows))
