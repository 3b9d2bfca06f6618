"""Keep who holds rows and who waits without one, by tenant. Host only, no jax, no clock."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from jaxgen.core.sequence import Sequence
from jaxgen.core.standing import Level

type _Place = tuple[tuple[int, float, int], str]
"""Order key of a tenant's first waiting sequence, and the tenant."""


class TenantQueues:
    """Online or background sequences by tenant: how many run, and which wait.

    A tenant without a row is *owed* one while others wait or run. It may take one from a tenant that has several, so
    that no tenant holds every row. Further rows come in the order of service. A change costs O(log n) comparisons.
    """

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, list[Sequence]] = {}
        self._owed: list[_Place] = []
        self._place_of: dict[str, _Place] = {}

    def wait(self, sequence: Sequence) -> None:
        """Note a sequence that waits."""
        insort(self._waiting.setdefault(sequence.request.tenant, []), sequence, key=_order_key)
        self._update_owed(sequence.request.tenant)

    def stop_waiting(self, sequence: Sequence) -> None:
        """Forget a sequence that waits; its place must be the one that it had."""
        tenant = sequence.request.tenant
        line = self._waiting[tenant]
        del line[bisect_left(line, sequence.standing.order_key, key=_order_key)]
        if not line:
            del self._waiting[tenant]
        self._update_owed(tenant)

    def run(self, sequence: Sequence, by: int = 1) -> None:
        """Count a sequence that begins to run, or with ``by`` -1 one that ends to."""
        tenant = sequence.request.tenant
        self._running[tenant] += by
        if not self._running[tenant]:
            del self._running[tenant]
        self._update_owed(tenant)

    def sort(self, tenant: str) -> None:
        """Put a tenant's waiting sequences in order again after their places were exchanged."""
        if tenant in self._waiting:
            self._waiting[tenant].sort(key=_order_key)
            self._update_owed(tenant)

    def owes(self, tenant: str) -> bool:
        """Whether a newcomer of this tenant would be its first while other tenants have rows."""
        return tenant not in self._running and tenant not in self._waiting and bool(self._running)

    def owed(self, most: int) -> list[Sequence]:
        """Return the first waiting sequence of each tenant without a row, in the order of service, ``most`` at most.

        None where there is one tenant alone.
        """
        if not self._owed or len(self._running) + len(self._waiting) < 2:
            return []
        return [self._waiting[tenant][0] for _, tenant in islice(self._owed, most)]

    def has_others(self, sequence: Sequence) -> bool:
        """Whether the tenant of a running sequence has further rows."""
        return self._running[sequence.request.tenant] > 1

    def may_give(self, running: Iterable[Sequence], newcomer: Sequence) -> Iterator[Sequence]:
        """Yield running sequences whose rows an owed ``newcomer`` may take, the first to take first.

        For an online one these are background ones first. Then comes the last of the tenant with the most rows by
        weight, of the newcomer's kind. Each tenant keeps one. None is taken from a level before the newcomer's, nor
        from one that was promoted because it had waited too long.
        """
        lines: dict[str, list[Sequence]] = {}
        background = []
        for sequence in running:
            if sequence.request.background is not newcomer.request.background:
                if sequence.request.background:
                    background.append(sequence)
            elif sequence.request.tenant != newcomer.request.tenant and _is_takeable(sequence, newcomer.standing.level):
                lines.setdefault(sequence.request.tenant, []).append(sequence)
        yield from reversed(background)
        left = self._running.copy()

        def load(tenant: str) -> float:
            return left[tenant] / lines[tenant][-1].request.tenant_weight

        while lines := {tenant: line for tenant, line in lines.items() if line and left[tenant] > 1}:
            most = max(lines, key=load)
            left[most] -= 1
            yield lines[most].pop()

    def _update_owed(self, tenant: str) -> None:
        """Put a tenant at its place among the tenants that are owed a row."""
        if tenant in self._place_of:
            del self._owed[bisect_left(self._owed, self._place_of.pop(tenant))]
        if tenant in self._waiting and tenant not in self._running:
            place = self._place_of[tenant] = self._waiting[tenant][0].standing.order_key, tenant
            insort(self._owed, place)


def _is_takeable(sequence: Sequence, level: Level) -> bool:
    return sequence.standing.level >= level and not sequence.standing.is_promoted


def _order_key(sequence: Sequence) -> tuple[int, float, int]:
    return sequence.standing.order_key
