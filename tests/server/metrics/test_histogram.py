"""Our histogram says at /metrics what prometheus_client's own says."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from jaxgen.server.metrics.histogram import Histogram

BOUNDS = (0.001, 0.0025, 1.0, 10.0)
VALUES = (0.0, 0.001, 0.0011, 0.5, 1.0, 10.0, 10.5, 1e6)


def test_it_says_what_the_reference_says() -> None:
    registry, expected = CollectorRegistry(), CollectorRegistry()
    ours = Histogram("name", "What it is.", {"model_name": "m"}, BOUNDS)
    registry.register(ours)
    reference = Reference("name", "What it is.", ["model_name"], buckets=BOUNDS, registry=expected).labels("m")
    for value in (None, *VALUES):
        if value is not None:
            ours.observe(value)
            reference.observe(value)
        said, meant = (generate_latest(one).decode().splitlines() for one in (registry, expected))
        assert said == [line for line in meant if "_created" not in line]
