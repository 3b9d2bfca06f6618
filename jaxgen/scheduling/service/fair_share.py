"""Share prompt tokens fairly between tenants. Host only, no jax, no clock."""

from collections.abc import Collection, Iterable

from jaxgen.core.sequence import Chunk

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
        self._step = float(token_budget)
        self._lead = LEAD_STEPS * self._step
        self._served: dict[str, float] = {}
        self._live: dict[str, int] = {}
        self._weights: dict[str, float] = {}

    def join(self, tenant: str, weight: float, wanting: Collection[str]) -> None:
        """Count a new sequence of a tenant. ``wanting``: tenants with prompt tokens to compute, before it."""
        if not self._live:
            self._served.clear()
        self._served[tenant] = self.served(tenant, wanting)
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self._weights[tenant] = weight

    def leave(self, tenant: str) -> None:
        """Forget a sequence of a tenant."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant], self._weights[tenant]
            least = min([self._served[other] for other in self._live], default=0.0)
            for gone in [name for name in self._served if name not in self._live and self._served[name] <= least]:
                del self._served[gone]

    @property
    def compares(self) -> bool:
        """Whether there are several tenants."""
        return len(self._live) > 1

    def charge(self, chunks: Iterable[Chunk]) -> None:
        """Count the tokens of these chunks."""
        if not self.compares:
            return
        for chunk in chunks:
            request = chunk.sequence.request
            self._served[request.tenant] += chunk.length / request.tenant_weight

    def over(self, wanting: Collection[str]) -> frozenset[str]:
        """Return the tenants of ``wanting`` that are over their share: the others go first."""
        if not self.compares:
            return frozenset()
        most = min([self._served[tenant] for tenant in wanting], default=0.0) + self._lead
        return frozenset([tenant for tenant in wanting if self._served[tenant] > most])

    def tokens_ahead(self, reached: float, other: str, before: int, everything: int) -> float:
        """Return how many tokens of another tenant are computed before a counter has ``reached`` its value.

        The other tenant has ``everything`` tokens, of which ``before`` are earlier in the order of service. Within the
        lead only ``before`` count. All count if the other tenant is behind by more than the lead, and none if it is
        ahead by more. Tenants are compared once a step, so the step in which the other reaches its bound is its own.
        """
        bounds = [(reached + by - self._served[other]) * self._weights[other] for by in (-self._lead, self._lead)]
        least, most = (bound + self._step if bound > 0.0 else 0.0 for bound in bounds)
        return max(min(before, most), min(everything, least))

    def served(self, tenant: str, wanting: Collection[str]) -> float:
        """Return the counter of a tenant, raised to that of the least served one if it has no prompts to compute."""
        served = self._served.get(tenant, 0.0)
        others = self._live.keys() - {tenant}
        if not others or tenant in wanting:
            return served
        # With no prompts to compute, no tenant was kept waiting.
        most = max([self._served[other] for other in others])
        return max(served, min([self._served[other] for other in wanting], default=most))
