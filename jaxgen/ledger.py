"""What each tenant was served, so that none takes another's share. Host only, no jax, no clock."""

from collections.abc import Iterable

from jaxgen.sequence import Chunk, Sequence

LEAD_STEPS = 4
"""Steps' worth of tokens by which a tenant may be ahead of others: what slack may decide without regard to shares."""


class TokenLedger:
    """Tokens computed for each tenant, divided by its weight: the virtual token counters of Sheng et al., "Fairness in
    Serving Large Language Models" (OSDI 2024, arXiv 2401.00588).

    A tenant that comes back after it had nothing to do begins where the least served of the others is: what it did not
    use is not kept for it. Tenants that had nothing to do are remembered while they are ahead of one that has.
    """

    def __init__(self, token_budget: int) -> None:
        self._lead = float(LEAD_STEPS * token_budget)
        self._served: dict[str, float] = {}
        self._live: dict[str, int] = {}

    def join(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if not self._live:
            self._served.clear()
        self._served[tenant] = self._served_of(tenant)
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def leave(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            least = min([self._served[other] for other in self._live], default=0.0)
            for gone in [name for name in self._served if name not in self._live and self._served[name] <= least]:
                del self._served[gone]

    def charge(self, chunks: Iterable[Chunk]) -> None:
        """These are computed."""
        if len(self._live) < 2:
            return  # there is nobody to compare with
        for chunk in chunks:
            request = chunk.sequence.request
            self._served[request.tenant] += chunk.length / request.tenant_weight

    def ahead(self, wanting: Iterable[Sequence]) -> frozenset[str]:
        """Of the tenants whose sequences want to be computed, those that must let the others go first."""
        if len(self._live) < 2:
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
        reached = self._served_of(tenant) + tokens / newcomer.request.tenant_weight
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

    def _served_of(self, tenant: str) -> float:
        """What a tenant was, or, if it comes only now, counts as if it was."""
        if tenant in self._live:
            return self._served[tenant]
        least = min([self._served[other] for other in self._live], default=0.0)
        return max(self._served.get(tenant, 0.0), least)
