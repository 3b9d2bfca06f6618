"""A Prometheus histogram that is cheap to add to."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """One series, updated by one thread, once for every token.

    prometheus_client's own histogram takes a lock and searches its buckets one by one, which takes ten times as long.
    """

    def __init__(self, name: str, text: str, labels: dict[str, str], bounds: Sequence[float]) -> None:
        """``bounds``: rising upper bounds of the buckets, inclusive."""
        self._family = (name, text, tuple(labels))
        self._labels = tuple(labels.values())
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def bounds(self) -> tuple[float, ...]:
        return self._bounds

    def counts(self) -> tuple[int, ...]:
        """Return the number of values in each bucket so far; the last bucket has those above all bounds."""
        return tuple(self._counts)

    def collect(self) -> Iterator[Metric]:
        bounds = map(floatToGoString, (*self._bounds, float("inf")))
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        family.add_metric(self._labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        yield family


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Estimate the value below which ``share`` of the counted values are, as Prometheus' histogram_quantile does.

    ``counts``: as ``Histogram.counts``, not all 0. Values are taken as spread evenly over their bucket; those above all
    bounds count as the last one.
    """
    rank = share * sum(counts)
    below = 0
    for index, bound in enumerate(bounds):
        count = counts[index]
        if count and below + count >= rank:
            lowest = bounds[index - 1] if index else 0.0
            return lowest + (bound - lowest) * max(0.0, rank - below) / count
        below += count
    return bounds[-1]
