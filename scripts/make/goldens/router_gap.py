"""How far the experts that a router chooses are from others, which rounding must not bridge."""

from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

SCORES_FOR_LOGITS = 10.0
"""Corrected scores lie between 0 and 1, where logits lie this much further apart."""


def router_gap(router: Any, inputs: Any, logits: Any, top_k: int) -> float:
    """Return the least lead of a chosen expert, of ``top_k``, or group of experts over the best of the others."""
    correction = _correction(router, inputs)
    if correction is None:
        scores, stretch = logits, 1.0
    else:
        softmax = hasattr(router, "moe_statics")
        scores = (logits.softmax(dim=-1) if softmax else logits.sigmoid()) + correction
        stretch = 1.0 if len(inputs) == 2 else SCORES_FOR_LOGITS  # the golden of LFM2 has the wider gap
    groups = getattr(router, "num_group", None) or 1
    if groups == 1 or getattr(router, "topk_method", None) == "greedy":
        return stretch * _lead(scores, top_k)
    of_groups = scores.unflatten(-1, (groups, -1)).topk(1 if correction is None else 2).values.sum(-1)
    allowed = torch.zeros_like(of_groups).scatter(1, of_groups.topk(router.topk_group).indices, 1).bool()
    within = scores.masked_fill(~allowed.repeat_interleave(scores.shape[-1] // groups, dim=1), -np.inf)
    return stretch * min(_lead(of_groups, router.topk_group), _lead(within, top_k))


def _correction(router: Any, inputs: Any) -> Any:
    """Return what is added to the scores by which experts are chosen, or None."""
    if len(inputs) == 2:
        return inputs[1]
    if hasattr(router, "moe_statics"):
        return router.moe_statics.e_score_correction_bias.squeeze()
    return getattr(router, "e_score_correction_bias", None)


def _lead(scores: Any, count: int) -> float:
    """Return the least lead of the best ``count`` over the others."""
    ordered = scores.sort(dim=-1, descending=True).values
    return float((ordered[:, count - 1] - ordered[:, count]).min())
