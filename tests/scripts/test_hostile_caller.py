"""python -m scripts.measure.hostile_caller at a fake engine."""

import json
from urllib.parse import urlsplit

from scripts.measure.hostile_caller import attacks, stream_for
from tests.support.benchmark_runs import served
from tests.support.server_app import fake_engine


def test_gaps_of_streams_are_timed() -> None:
    with served(fake_engine()) as url:
        port = urlsplit(url).port
        assert port is not None
        gaps = stream_for(port, 0.5, tokens=20)
    assert len(gaps) > 1
    assert all(gap >= 0 for gap in gaps)


def test_attacks_are_requests() -> None:
    for path, body in attacks():
        assert path.startswith("/v1/")
        assert json.loads(json.dumps(body)) == body
