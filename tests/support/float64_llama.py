"""A Llama model in numpy's float64, straight from a GGUF file: what an engine with the file's weights must say.

Nothing is shared with the code that it checks, but for the gguf package's reader: the blocks are dequantised here, and
the rows of queries and keys stay in the file's order, in which rotary pairs are neighbours.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

type Floats = npt.NDArray[np.float64]

_BLOCK = 32
"""Weights of a block of Q4_1 and Q8_0."""
_AT_ONCE = 128
"""Tokens whose scores, or logits, are computed at a time."""


class Float64Llama:
    """The model of a file in types F32, Q8_0 and Q4_1, with a tied head.

    ``rounded``: what becomes of the inputs [tokens, in] of each product with a matrix; None: they stay.
    """

    def __init__(self, path: Path, rounded: Callable[[Floats], Floats] | None = None) -> None:
        reader = GGUFReader(path)
        self._rounded = rounded
        self._weights = {tensor.name: _dequantised(tensor) for tensor in reader.tensors}
        fields = {name.removeprefix("llama."): field for name, field in reader.fields.items()}
        self._layers = int(fields["block_count"].contents())
        self._heads = int(fields["attention.head_count"].contents())
        self._kv_heads = int(fields["attention.head_count_kv"].contents())
        self._eps = float(fields["attention.layer_norm_rms_epsilon"].contents())
        self._theta = float(fields["rope.freq_base"].contents())

    def logprobs(self, tokens: Sequence[int], first: int = 0) -> Floats:
        """Return log-probabilities of the token after each of ``tokens[first:]``, [len(tokens) - first, vocabulary]."""
        return self._head(self._hidden(tokens)[first:])

    def scores(self, tokens: Sequence[int], first: int) -> Floats:
        """Return the log-probabilities of ``tokens[first:]``, each after the tokens before it."""
        hidden, following = self._hidden(tokens)[first - 1 : -1], np.asarray(tokens[first:])
        parts = range(0, len(hidden), _AT_ONCE)  # of the vocabulary, all at once would take gigabytes
        return np.concatenate(
            [
                np.take_along_axis(
                    self._head(hidden[part : part + _AT_ONCE]), following[part : part + _AT_ONCE, None], axis=1
                )[:, 0]
                for part in parts
            ]
        )

    def _hidden(self, tokens: Sequence[int]) -> Floats:
        """Return the hidden states after the layers, [len(tokens), hidden size]."""
        hidden = self._weights["token_embd.weight"][list(tokens)]
        turns = self._turns(len(tokens))
        for layer in range(self._layers):
            own = f"blk.{layer}."
            hidden = hidden + self._attention(own, self._norm(hidden, f"{own}attn_norm"), turns)
            hidden = hidden + self._mlp(own, self._norm(hidden, f"{own}ffn_norm"))
        return hidden

    def _head(self, hidden: Floats) -> Floats:
        logits = self._product(self._norm(hidden, "output_norm"), "token_embd")
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits

    def _attention(self, own: str, x: Floats, turns: npt.NDArray[np.complex128]) -> Floats:
        queries = _rotated(self._heads_of(own, "attn_q", x, self._heads), turns)
        keys = _rotated(self._heads_of(own, "attn_k", x, self._kv_heads), turns)
        values = self._heads_of(own, "attn_v", x, self._kv_heads)
        mixed = np.empty_like(queries)
        for start in range(0, len(x), _AT_ONCE):
            end = min(start + _AT_ONCE, len(x))
            later = np.arange(end) > np.arange(start, end)[:, None]
            for head in range(self._heads):
                shared = head * self._kv_heads // self._heads
                scores = queries[head, start:end] @ keys[shared, :end].T / np.sqrt(queries.shape[-1])
                scores[later] = -np.inf
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                mixed[head, start:end] = scores @ values[shared, :end] / scores.sum(axis=1, keepdims=True)
        return self._product(mixed.swapaxes(0, 1).reshape(len(x), -1), f"{own}attn_output")

    def _heads_of(self, own: str, name: str, x: Floats, heads: int) -> Floats:
        """Return a projection as [heads, tokens, size of a head]."""
        return self._product(x, f"{own}{name}").reshape(len(x), heads, -1).swapaxes(0, 1)

    def _mlp(self, own: str, x: Floats) -> Floats:
        gate, up = self._product(x, f"{own}ffn_gate"), self._product(x, f"{own}ffn_up")
        return self._product(gate / (1 + np.exp(-gate)) * up, f"{own}ffn_down")

    def _product(self, x: Floats, name: str) -> Floats:
        return (x if self._rounded is None else self._rounded(x)) @ self._weights[f"{name}.weight"].T

    def _norm(self, x: Floats, name: str) -> Floats:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self._eps) * self._weights[f"{name}.weight"]

    def _turns(self, length: int) -> npt.NDArray[np.complex128]:
        """Return what rotary pairs are multiplied by, as complex numbers, [tokens, pairs]."""
        pairs = len(self._weights["blk.0.attn_q.weight"]) // self._heads // 2
        angles = np.outer(np.arange(length), self._theta ** (-np.arange(pairs) / pairs))
        return np.exp(1j * angles)


def _rotated(heads: Floats, turns: npt.NDArray[np.complex128]) -> Floats:
    """Return heads whose neighbouring numbers are rotated as pairs."""
    return (np.ascontiguousarray(heads).view(np.complex128) * turns).view(np.float64)


def _dequantised(tensor: Any) -> Floats:
    """Return a tensor's values, [out, in]. A block of Q4_1 has a scale, a minimum, and 16 bytes: the codes of its first
    half in their low bits, of its second half in the high; one of Q8_0 a scale and 32 bytes with a sign."""
    shape = [int(size) for size in reversed(tensor.shape)]
    kind = tensor.tensor_type.name
    if kind == "F32":
        return np.asarray(tensor.data, np.float64).reshape(shape)
    blocks = np.ascontiguousarray(tensor.data).reshape(-1, {"Q4_1": 20, "Q8_0": 34}[kind])
    scale = blocks[:, :2].view(np.float16).astype(np.float64)
    if kind == "Q8_0":
        return (blocks[:, 2:].view(np.int8) * scale).reshape(shape)
    minimum, codes = blocks[:, 2:4].view(np.float16).astype(np.float64), blocks[:, 4:]
    values = np.concatenate([codes & 15, codes >> 4], axis=1)
    assert values.shape[1] == _BLOCK
    return (values * scale + minimum).reshape(shape)
