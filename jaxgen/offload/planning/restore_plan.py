"""Plan how a context in the host store is restored: transfer, projection, recompute. Host only, no jax.

Two serial resources work at the same time, the device and the link to the host. Of n tokens from position ``start``

    [0, a)    are recomputed from their ids as ordinary prompt chunks: alpha + beta * position seconds a token. Here
              alpha = step_seconds / tokens free in a step, as every step takes the same time.
    [a, a+l)  are projected to K and V from their stored layer inputs X: chi seconds a token on the link, pi on the
              device (KVPR, arXiv 2411.17089; HCache, arXiv 2410.05004).
    the rest  is transferred as KV: tau seconds a token on the link. (Cake, arXiv 2410.03065, recomputes from the front
              while KV is transferred from the back.)

The link transfers X before KV, in copies of c tokens. The device recomputes first, then projects each copy of X once it
has arrived. Both orders are optimal. The link and the device are a flow shop of two machines. KV has no work on the
second machine, so Johnson's rule (1954) puts it last. Recompute needs no data from the link. With R(a) = alpha * a +
beta * (start * a + a**2 / 2), the three parts are all finished at

    T(a, l) = max(max(R(a), chi * c) + l * pi,  l * chi + max(c * pi, (n - a - l) * tau)),   T(a, 0) without c.

Projection pays only if chi < tau, that is, if X has fewer bytes than KV. With the grouped-query attention of Llama-3-8B
it never does, because X has twice as many bytes. For each a, the first term and c * pi rise with l, and the term of KV
falls. So the best l is the grid point next to where they meet, min(l_1, l_2):

    l_1 = ((n - a) * tau - max(R(a), chi * c)) / (pi + tau - chi),   l_2 = ((n - a) * tau - c * pi) / tau.

The best a is searched for: T is computed for every a on the grid, with its best l.

A snapshot of a state comes after KV, in sigma seconds of the link. So it is sigma more wherever a time of KV is said.

While other requests wait for the token budget, they lose the tokens that recompute takes. So R is multiplied by a price
in the choice, though not in the predicted time; at a high enough price no token is recomputed. A plan that is not at
least ``MIN_GAIN`` faster than plain transfer is replaced by plain transfer. Cake has no such rule and is slower than
plain transfer on a busy device (0.80 of its speed in the paper's worst case).
"""

from dataclasses import dataclass, replace
from math import inf, isinf
from typing import Self

import numpy as np

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.host_dtype import HostDType

MIN_GAIN = 0.05
"""The share of a pure transfer's time that another plan must save."""


@dataclass(frozen=True, slots=True)
class ContextCost:
    """Cost of a token of context over all layers: bytes of K and V, bytes of the layer inputs X, and the FLOPs that
    project X to K and V."""

    kv_bytes: float
    x_bytes: float
    projection_flops: float

    @classmethod
    def of(cls, cache: CacheFormat, host_dtype: HostDType = "auto") -> Self:
        """Return the cost for a cache whose blocks have this dtype in host memory, with 2 FLOPs per weight."""
        return cls(
            cache.host_kv_bytes(host_dtype) / cache.block_size,
            cache.input_bytes,
            2 * cache.hidden_size * cache.kv_numbers,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of a device and its link. Raises ValueError for negative values and NaN.

    ``link_bytes_per_second``: from host to device; 0: unknown, or there is no link. ``flops_per_second``: of the
    projection; 0: unknown, do not project. ``step_seconds``: of a step of the whole token budget. ``copy_seconds``: the
    fixed cost of each copy. ``seconds_per_position``: beta, the additional time of a token for each token before it.
    """

    link_bytes_per_second: float
    flops_per_second: float
    step_seconds: float
    copy_seconds: float = 0.0
    seconds_per_position: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: float = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} must be 0 or more, not {value}")
        if not 0 < self.step_seconds < inf:
            raise ValueError(f"step_seconds must be finite and more than 0, not {self.step_seconds}")


@dataclass(frozen=True, slots=True)
class TokenSeconds:
    """Seconds per token: its KV on the link (tau), its X on the link (chi), its projection on the device (pi)."""

    kv: float
    x: float
    project: float

    @classmethod
    def of(cls, cost: ContextCost, rates: Rates, copy_tokens: int) -> Self:
        """Return the seconds in copies of ``copy_tokens`` tokens. They are inf where a rate is unknown."""
        copy = rates.copy_seconds / copy_tokens
        return cls(
            _quotient(cost.kv_bytes, rates.link_bytes_per_second) + copy,
            _quotient(cost.x_bytes, rates.link_bytes_per_second) + copy,
            _quotient(cost.projection_flops, rates.flops_per_second),
        )

    @property
    def projection_pays(self) -> bool:
        """Whether X takes less time on the link than KV; if not, projection is never better."""
        return self.x < self.kv and not isinf(self.project)

    def makespan(self, project: int, transfer: int, *, chunk: int, busy: float = 0.0, state: float = 0.0) -> float:
        """Return the seconds until ``project`` tokens, in copies of ``chunk``, and KV of ``transfer`` tokens are there.

        ``busy``: seconds of the device's other work, which does not wait for the link. ``chunk == project``: projection
        begins only when all of X has arrived. ``state``: seconds of the link for a snapshot.
        """
        if project == 0:
            return max(busy, transfer * self.kv + state)
        device = max(busy, chunk * self.x) + project * self.project
        link = project * self.x + max(chunk * self.project, transfer * self.kv + state)
        return max(device, link)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Tokens from the front: ``recompute``, then ``project``, then ``transfer``; each a multiple of the block size.

    ``seconds``: predicted time of the plan. ``transfer_seconds``, ``recompute_seconds``: predicted time to transfer or
    recompute all tokens; inf if the link is unknown, or no tokens are free.
    """

    recompute: int
    project: int
    transfer: int
    seconds: float
    transfer_seconds: float
    recompute_seconds: float


@dataclass(frozen=True, slots=True)
class _Recompute:
    """R(a), ``priced`` or not: seconds to recompute the first tokens from ``start`` on."""

    alpha: float
    beta: float
    start: int

    @classmethod
    def of(cls, rates: Rates, free_tokens: int, start: int) -> Self:
        return cls(_quotient(rates.step_seconds, free_tokens), rates.seconds_per_position, start)

    def priced(self, price: float) -> "_Recompute":
        return _Recompute(price * self.alpha, price * self.beta, self.start)

    def seconds(self, tokens: int) -> float:
        return tokens * (self.alpha + self.beta * (self.start + tokens / 2)) if tokens else 0.0


@dataclass(frozen=True, slots=True)
class _Context:
    tokens: int
    block_size: int
    chunk: int
    """Tokens in a copy of X."""
    unit: TokenSeconds
    state: float
    """Seconds of the link for a snapshot."""

    def makespan(self, first: int, project: int, work: _Recompute) -> float:
        """Return T(a, l), where ``work`` is R."""
        transfer = self.tokens - first - project
        state = self.state if transfer + project else 0.0
        return self.unit.makespan(project, transfer, chunk=self.chunk, busy=work.seconds(first), state=state)

    @np.errstate(over="ignore")  # a projection that takes forever is as good as one that takes 1e307 s
    def split(self, work: _Recompute) -> tuple[int, int]:
        """Return the best a and l: of every a on the grid, with the whole copies on either side of the best l."""
        most = self.tokens
        if isinf(work.alpha):  # no token is free for recompute
            most, work = 0, replace(work, alpha=0.0)
        first = np.arange(0, most + 1, self.block_size)
        rest, busy = self.tokens - first, first * (work.alpha + work.beta * (work.start + first / 2))
        unit, chunk = self.unit, self.chunk
        state = np.where(rest == 0, 0.0, self.state)  # where all is computed, none comes
        copying = rest * unit.kv + state
        if not unit.projection_pays:
            return int(first[np.argmin(np.maximum(busy, copying))]), 0
        device_meets = (copying - np.maximum(busy, chunk * unit.x)) / (unit.project + unit.kv - unit.x)
        last_copy_meets = (copying - chunk * unit.project) / unit.kv
        copies = np.clip(np.minimum(device_meets, last_copy_meets) / chunk, 0, rest // chunk)
        project = np.stack([np.floor(copies), np.ceil(copies)]).astype(int) * chunk
        device = np.maximum(busy, chunk * unit.x) + project * unit.project
        link = project * unit.x + np.maximum(chunk * unit.project, (rest - project) * unit.kv + state)
        seconds = np.where(project == 0, np.maximum(busy, copying), np.maximum(device, link))
        index, side = divmod(int(np.argmin(seconds.T)), 2)
        return int(first[index]), int(project[side, index])


def plan_restore(
    tokens: int,
    *,
    start: int,
    block_size: int,
    cost: ContextCost,
    rates: Rates,
    free_tokens: int,
    x_stored: bool,
    price: float = 1.0,
    copy_tokens: int | None = None,
    state_bytes: int = 0,
) -> RestorePlan:
    """Return the fastest plan to restore ``tokens`` tokens from position ``start`` on; see the module's docstring.

    ``tokens``: a multiple of ``block_size``. ``copy_tokens``: tokens in a copy of X, of which only whole ones are
    projected; a multiple of ``block_size``, and ``block_size`` by default. ``free_tokens``: tokens of each step's
    budget that recompute may use. ``x_stored``: whether the host has X of all tokens. ``price`` >= 1: the price of
    recompute. ``state_bytes``: of a snapshot that comes too, unless all tokens are recomputed. Of equally fast plans it
    returns the one that recomputes least, then projects least. If the link is unknown all tokens are recomputed. Raises
    ValueError for arguments out of range.
    """
    _require(tokens, start, block_size, free_tokens, price, copy_tokens)
    recompute, unit = _Recompute.of(rates, free_tokens, start), TokenSeconds.of(cost, rates, block_size)
    state = _quotient(state_bytes, rates.link_bytes_per_second) if state_bytes else 0.0
    recompute_seconds, transfer_seconds = recompute.seconds(tokens), tokens * unit.kv + state if tokens else 0.0
    if tokens == 0 or isinf(transfer_seconds):
        return RestorePlan(tokens, 0, 0, recompute_seconds, transfer_seconds, recompute_seconds)
    chunk = block_size if copy_tokens is None else copy_tokens
    context = _Context(tokens, block_size, chunk, unit if x_stored else replace(unit, x=inf), state)
    priced = recompute.priced(price)
    first, project = context.split(priced)
    if context.makespan(first, project, priced) > (1 - MIN_GAIN) * transfer_seconds:
        first = project = 0
    seconds = context.makespan(first, project, recompute)
    return RestorePlan(first, project, tokens - first - project, seconds, transfer_seconds, recompute_seconds)


def _quotient(amount: float, rate: float) -> float:
    return amount / rate if rate else inf


def _require(tokens: int, start: int, block_size: int, free_tokens: int, price: float, copy_tokens: int | None) -> None:
    if block_size < 1 or tokens < 0 or tokens % block_size:
        raise ValueError(f"tokens must be a multiple of the block size, not {tokens} of {block_size}")
    if start < 0 or free_tokens < 0:
        raise ValueError(f"start and free_tokens must be 0 or more, not {start} and {free_tokens}")
    if copy_tokens is not None and (copy_tokens < 1 or copy_tokens % block_size):
        raise ValueError(f"copy_tokens must be a multiple of the block size, not {copy_tokens} of {block_size}")
    if not 1 <= price < inf:
        raise ValueError(f"price must be finite and 1 or more, not {price}")
