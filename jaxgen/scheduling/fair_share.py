"""What each tenant was served, so that none takes another's share. Host only, no jax, no clock."""

from collections.abc import Iterable

from jaxgen.core.sequence import Chunk, Sequence

LEAD_STEPS = 4
"""Steps' worth of tokens by which a tenant may be ahead of others: what slack may decide without regard to shares."""


class FairShare:
    """Tokens computed for each tenant, divided by its weight: the virtual token counters of Sheng et al., "Fairness in
    Serving Large Language Models" (OSDI 2024, arXiv 2401.00588).

    A tenant that wants nothing computed but decodes, which all get, uses no share. When it wants something again it
    begins where the least served of those that do is, so that what it did not use is not kept for it. Tenants that had
    nothing to do are remembered while they are ahead of one that has.
    """

    def __init__(self, token_budget: int) -> None:
        self._lead = float(LEAD_STEPS * token_budget)
        self._served: dict[str, float] = {}
        self._live: dict[str, int] = {}

    def join(self, sequence: Sequence, wanting: Iterable[Sequence]) -> None:
        """``wanting``: the others that want to be computed, but for decodes; of no interest without other tenants."""
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
        """Than its tenant."""
        return len(self._live) > (sequence.request.tenant in self._live)

    def charge(self, chunks: Iterable[Chunk]) -> None:
        """These are computed."""
        if not self.compares:
            return
        for chunk in chunks:
            request = chunk.sequence.request
            self._served[request.tenant] += chunk.length / request.tenant_weight

    def ahead(self, wanting: Iterable[Sequence]) -> frozenset[str]:
        """Of the tenants whose sequences want to be computed, those that must let the others go first."""
        if not self.compares:
            return frozenset()
        tenants = {sequence.request.tenant for sequence in wanting}
        most = min([self._served[tenant] for tenant in tenants], default=0.0) + self._lead
        return frozenset([tenant for tenant in tenants if self._served[tenant] > most])

    def before(self, newcomer: Sequence, urgency: tuple[int, float, int], wanting: list[Sequence]) -> list[Sequence]:
        """Of those that want to be computed, in the order of service, the ones that will be before a newcomer of this
        ``urgency`` is: by the order, but of each other tenant as many tokens as keep it within the lead of its own."""
        first = [s for s in wanting if s.urgency < urgency]
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
            own += self._up_to(reached, urgency, line)
        return own

    def _up_to(self, reached: float, urgency: tuple[int, float, int], line: list[Sequence]) -> list[Sequence]:
        """Of one tenant's, those computed before another tenant, in the order at ``urgency``, is served so much."""
        served, found = self._served[line[0].request.tenant], []
        for sequence in line:
            if served >= reached + self._lead or (served >= reached - self._lead and sequence.urgency >= urgency):
                break
            found.append(sequence)
            served += sequence.num_uncomputed / sequence.request.tenant_weight
        return found

    def _served_of(self, tenant: str, wanting: Iterable[Sequence]) -> float:
        """What a tenant was, or, if none of those that want to be computed is its, counts as if it was."""
        served = self._served.get(tenant, 0.0)
        others = self._live.keys() - {tenant}
        if not others or any(s.request.tenant == tenant for s in wanting):
            return served
        # Where nobody wants anything, nobody was kept waiting either.
        found = {s.request.tenant for s in wanting}
        most = max([self._served[other] for other in others])
        return max(served, min([self._served[other] for other in found], default=most))
