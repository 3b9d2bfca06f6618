"""Share prompt tokens fairly between tenants. Host only, no jax, no clock."""

from collections.abc import Iterable

from jaxgen.core.sequence import Chunk, Sequence

LEAD_STEPS = 4
"""Steps' worth of tokens that a tenant may be served beyond others before shares decide instead of due times."""


class FairShare:
    """Tokens computed for each tenant, divided by its weight: the virtual token counters of Sheng et al., "Fairness in
    Serving Large Language Models" (OSDI 2024, arXiv 2401.00588).

    Decodes use no share, since every step has all of them. A tenant that comes back starts at the counter of the least
    served tenant with prompts to compute, so that unused share is not saved up. The counter of an idle tenant is kept
    while it is ahead of one that is not idle.
    """

    def __init__(self, token_budget: int) -> None:
        self._lead = float(LEAD_STEPS * token_budget)
        self._served: dict[str, float] = {}
        self._live: dict[str, int] = {}

    def join(self, sequence: Sequence, wanting: Iterable[Sequence]) -> None:
        """Count a new sequence. ``wanting``: the others with prompt tokens to compute; unused without other tenants."""
        tenant = sequence.request.tenant
        if not self._live:
            self._served.clear()
        self._served[tenant] = self._served_of(tenant, wanting)
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def leave(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            least = min([self._served[other] for other in self._live], default=0.0)
            for gone in [name for name in self._served if name not in self._live and self._served[name] <= least]:
                del self._served[gone]

    @property
    def compares(self) -> bool:
        """Whether there are several tenants."""
        return len(self._live) > 1

    def has_others(self, sequence: Sequence) -> bool:
        """Whether other tenants than the sequence's live."""
        return len(self._live) > (sequence.request.tenant in self._live)

    def charge(self, chunks: Iterable[Chunk]) -> None:
        """Count the tokens of these chunks."""
        if not self.compares:
            return
        for chunk in chunks:
            request = chunk.sequence.request
            self._served[request.tenant] += chunk.length / request.tenant_weight

    def over(self, wanting: Iterable[Sequence]) -> frozenset[str]:
        """Tenants of ``wanting`` that are over their share: the others go first."""
        if not self.compares:
            return frozenset()
        tenants = {sequence.request.tenant for sequence in wanting}
        most = min([self._served[tenant] for tenant in tenants], default=0.0) + self._lead
        return frozenset([tenant for tenant in tenants if self._served[tenant] > most])

    def ahead_of(
        self, newcomer: Sequence, order_key: tuple[int, float, int], wanting: list[Sequence]
    ) -> list[Sequence]:
        """The sequences of ``wanting`` that will be computed before a newcomer with this order key.

        Its own tenant's by the order of service; of each other tenant as many tokens as the fair share allows.
        """
        first = [s for s in wanting if s.order_key < order_key]
        tenant = newcomer.request.tenant
        if not self._live.keys() - {tenant}:
            return first
        own = [s for s in first if s.request.tenant == tenant]
        tokens = sum([s.num_uncomputed for s in own]) + newcomer.num_uncomputed
        reached = self._served_of(tenant, wanting) + tokens / newcomer.request.tenant_weight
        others: dict[str, list[Sequence]] = {}
        for sequence in wanting:
            if sequence.request.tenant != tenant:
                others.setdefault(sequence.request.tenant, []).append(sequence)
        for line in others.values():
            own += self._up_to(reached, order_key, line)
        return own

    def _up_to(self, reached: float, order_key: tuple[int, float, int], line: list[Sequence]) -> list[Sequence]:
        """The sequences of one tenant that come before another tenant's counter has ``reached`` so much."""
        served, found = self._served[line[0].request.tenant], []
        for sequence in line:
            if served >= reached + self._lead or (served >= reached - self._lead and sequence.order_key >= order_key):
                break
            found.append(sequence)
            served += sequence.num_uncomputed / sequence.request.tenant_weight
        return found

    def _served_of(self, tenant: str, wanting: Iterable[Sequence]) -> float:
        """The counter of a tenant, raised to that of the least served one if it has no prompt tokens to compute."""
        served = self._served.get(tenant, 0.0)
        others = self._live.keys() - {tenant}
        if not others or any(s.request.tenant == tenant for s in wanting):
            return served
        # With no prompts to compute, no tenant was kept waiting.
        found = {s.request.tenant for s in wanting}
        most = max([self._served[other] for other in others])
        return max(served, min([self._served[other] for other in found], default=most))
