"""Ray Serve with two replicas: its proxy, a replica that is killed, fails or drains, and none until a request comes.

This environment has jaxgen, since Ray's processes import it. One test after the other changes the same application.
"""

import os
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
import yaml

from tests.clients.conftest import MODEL, ROOT, post
from tests.clients.fleet import SECONDS, Fleet, Stream, begin, join, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    import ray
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema
    from ray.util import list_named_actors

# metrics_interval_s is to be a variable.
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
LONG = 200
"""Tokens of streams that must still go on when something happens to their replica."""

START_SECONDS = 300
"""Most time for Ray to start or end replicas."""
WORK_SECONDS = 120
"""Most time for streams, of which XLA's kernels compute the tokens while other tests have the processors too."""


class Application:
    """docs/ray/serve.yaml, with changes, at a free port."""

    def __init__(self) -> None:
        self.fleet = Fleet([])
        self._config = yaml.safe_load((ROOT / "docs" / "ray" / "serve.yaml").read_text())
        self._config["http_options"]["port"] = self.fleet.port
        (self._application,) = self._config["applications"]
        self._application["args"] |= {"kernels": "xla", "single-shape": True, "token-budget": 32, "max-num-seqs": 8}
        (self._deployment,) = self._application["deployments"]
        self.autoscaling = self._deployment.pop("autoscaling_config")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.fleet.port}"

    def deploy(self, **options: Any) -> None:
        """Ask Ray for it as ``serve run`` does; Ray changes what runs by itself."""
        self._application["deployments"] = [{**self._deployment, **options}]
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(self._config))

    def reaches(self, **states: int) -> None:
        """Wait until it has so many replicas in these states, and none in another."""
        until(lambda: self._replicas() == states, f"{states} expected: {serve.status()}", START_SECONDS, 0.2)

    def _replicas(self) -> dict[str, int]:
        """How many there are in each state."""
        found = serve.status().applications["jaxgen"].deployments.get("jaxgen")
        return {} if found is None else {str(getattr(k, "value", k)): v for k, v in found.replica_states.items()}


def processes() -> list[int]:
    """The process ids of this cluster's replicas."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found += [one.pid] * one.cmdline()[0].startswith("ray::ServeReplica:jaxgen:")
    return sorted(found)


def streams(application: Application, num_tokens: int = LONG) -> list[Stream]:
    return [Stream(application.fleet, f"{10**index} is {index}", num_tokens) for index in range(8)]


def running(application: Application) -> float:
    """How many requests the replica computes that happens to be asked."""
    with urlopen(f"{application.url}/metrics", timeout=SECONDS) as answer:
        found = re.findall(r"^jaxgen_num_requests_running\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    return sum(float(value) for value in found)


def break_engine() -> int:
    """Make the next step of a replica that runs one fail, and all after it; the id of its process."""

    def breaks(_: Any) -> int:
        from jaxgen.runner.model_runner import ModelRunner

        def run(*_: Any, **__: Any) -> Any:
            raise RuntimeError("the device is lost")

        ModelRunner.run = run  # type: ignore[method-assign]
        return os.getpid()

    named = [one for one in list_named_actors(all_namespaces=True) if one["name"].startswith("SERVE_REPLICA::jaxgen#")]
    actor = ray.get_actor(named[0]["name"], namespace=named[0]["namespace"])
    found: int = ray.get(actor.__ray_call__.remote(breaks))
    return found


def start_ray() -> None:
    """Ray gives its processes 30 s to start and then gives up; a busy machine may need more, so try again."""
    quiet = {"include_dashboard": False, "logging_level": "warning", "log_to_driver": False}
    for left in (2, 1, 0):
        try:
            ray.init(num_cpus=2, _node_ip_address="127.0.0.1", **quiet)
            return
        except Exception:
            if not left:
                raise
            ray.shutdown()


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    made = Application()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    start_ray()
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": made.fleet.port})
        made.deploy(num_replicas=2)
        made.reaches(RUNNING=2)
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(application: Application, **fields: Any) -> Any:
    return post(f"{application.url}/v1/completions", {"model": MODEL, "temperature": 0, "max_tokens": 8, **fields})


def test_answers_and_their_streams(application: Application) -> None:
    """The first event of a stream comes while its replica computes the rest; one whose caller leaves ends."""
    whole = ask(application, prompt="def main():")["choices"]
    assert [ask(application, prompt="def main():")["choices"] for _ in range(6)] == [whole] * 6
    assert ask(application, prompt="def main():", max_tokens=4, echo=True)["choices"][0]["text"].startswith(
        "def main():"
    )
    # One at each replica: Ray sends a request to the one that has fewer.
    events = [Stream(application.fleet, "def main():", 2000).events() for _ in range(2)]
    assert all(next(one)[0].startswith("{") for one in events)
    until(lambda: running(application) == 1.0, "no replica computes a stream")
    for one in events:
        one.close()
    until(lambda: [running(application) for _ in range(6)] == [0.0] * 6, "the streams have not ended with their caller")


def test_of_a_replica_that_is_killed_only_its_own_streams_end_and_go_on_elsewhere(application: Application) -> None:
    unbroken = streams(application)
    join(begin(unbroken), WORK_SECONDS)
    assert all(stream.whole for stream in unbroken)
    under_way = streams(application)
    threads = begin(under_way)
    until(lambda: all(stream.begun for stream in under_way), "not all streams have begun")
    victim, _ = processes()
    os.kill(victim, signal.SIGKILL)
    join(threads, WORK_SECONDS)
    broken = [stream for stream in under_way if not stream.whole]
    assert 0 < len(broken) < len(under_way)
    assert all(other.text.startswith(stream.text) for stream, other in zip(under_way, unbroken, strict=True))
    join(begin(broken), WORK_SECONDS)
    assert [stream.text for stream in under_way] == [stream.text for stream in unbroken]
    until(lambda: len(processes()) == 2, "no other process has come", START_SECONDS, 0.2)
    application.reaches(RUNNING=2)
    assert victim not in processes()


def test_a_replica_whose_engine_dies_is_another_one_soon(application: Application) -> None:
    """Its process is well, so that nothing but jaxgen can tell."""
    unbroken = streams(application)
    join(begin(unbroken), WORK_SECONDS)
    under_way = streams(application)
    threads = begin(under_way)
    until(lambda: all(stream.begun for stream in under_way), "not all streams have begun")
    victim = break_engine()
    join(threads, WORK_SECONDS)
    broken = [stream for stream in under_way if not stream.whole]
    assert 0 < len(broken) < len(under_way)
    # Sooner than Ray would find by itself: by three checks, 10 s apart.
    until(lambda: victim not in processes(), "the process of the dead engine goes on", 15)
    assert [ask(application, prompt="def main():")["usage"]["completion_tokens"] for _ in range(8)] == [8] * 8
    join(begin(broken), WORK_SECONDS)
    assert [stream.text for stream in under_way] == [stream.text for stream in unbroken]
    until(lambda: len(processes()) == 2, "no other process has come", START_SECONDS, 0.2)
    application.reaches(RUNNING=2)


def test_a_replica_that_drains_costs_no_request(application: Application) -> None:
    under_way = streams(application)
    threads = begin(under_way)
    until(lambda: all(stream.begun for stream in under_way), "not all streams have begun")
    application.deploy(num_replicas=1)
    later = streams(application, 20)
    join(threads + begin(later), WORK_SECONDS)
    assert [stream.status for stream in under_way + later if not stream.whole] == []
    application.reaches(RUNNING=1)


def test_there_is_none_until_a_request_comes(application: Application) -> None:
    quick = {"min_replicas": 0, "downscale_delay_s": 0.1, "upscale_delay_s": 0.1}
    quick |= {"metrics_interval_s": 0.2, "look_back_period_s": 1}
    application.deploy(autoscaling_config=application.autoscaling | quick)
    application.reaches()
    assert ask(application, prompt="def main():")["choices"]
    application.reaches()
    until(lambda: processes() == [], "the process has not ended", START_SECONDS, 0.2)
