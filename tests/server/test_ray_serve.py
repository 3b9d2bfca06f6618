"""The application of Ray Serve, without Ray: its flags, its replicas' lives, what is asked of Ray."""

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxgen.client import EngineStatus
from jaxgen.core.errors import ConfigError
from jaxgen.server import ray_serve
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.ray_serve import OF_THE_PROXY, Replica, application, build_app, parse_flags
from tests.support.fakes import FakeEngine
from tests.support.server_app import fake_engine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Ray is asked for, where something stands in for it."""
    found: dict[str, Any] = {}

    def deployment(**options: Any) -> Any:
        def bind(flags: dict[str, Any]) -> str:
            found.update(options=options, flags=flags)
            return "the application"

        return lambda kind: SimpleNamespace(bind=bind, kind=kind)

    made: Any = ModuleType("ray")
    made.serve = SimpleNamespace(deployment=deployment, ingress=lambda: lambda kind: kind)
    monkeypatch.setitem(sys.modules, "ray", made)
    return found


class StartedEngine(FakeEngine):
    """Notes down what becomes of it."""

    def start(self) -> None:
        self.calls = ["start"]

    def wait_ready(self) -> None:
        self.calls.append("wait_ready")

    def stop(self, timeout: float | None = None) -> bool:
        self.calls.append("stop")
        return True


def test_flags_are_those_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXGEN_PORT", "9")
    monkeypatch.setenv("JAXGEN_MAX_NUM_SEQS", "7")
    flags = {"model": "M", "token_budget": 64, "api-key": ["a", "b"], "no-ui": True, "single-shape": False}
    words = ["--model", "M", "--token-budget", "64", "--api-key", "a", "--api-key", "b", "--no-ui"]
    found = parse_flags({**flags, "enable-prefix-caching": False})
    assert found == make_parser().parse_args([*words, "--no-enable-prefix-caching"])
    assert (found.max_num_seqs, found.ui, found.prefix_caching) == (7, False, False)
    assert parse_flags({"max-num-seqs": 8}).max_num_seqs == 8, "a flag wins over the environment"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"max-num-seq": 8}, "max-num-seq is not a flag; the nearest is max-num-seqs"),
        ({"max-num-seqs": "many"}, "--max-num-seqs: invalid int value: 'many'"),
        ({"model": None}, "model must be a text, a number, true, false or a list, not None"),
        ({"no-ui": "perhaps"}, "Unexpected value for no-ui: 'perhaps'"),
        *[({name: 1}, f"{name} has no meaning here: Ray's proxy has the connections") for name in sorted(OF_THE_PROXY)],
    ],
)
def test_what_is_no_flag_here_is_refused(asked: dict[str, Any], flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_app(flags)
    assert said in str(error.value)
    assert not asked


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXGEN_MODLE", "M")
    with pytest.raises(ConfigError, match="JAXGEN_MODLE sets no flag"):
        parse_flags({})


def test_what_is_asked_of_ray(asked: dict[str, Any]) -> None:
    flags = {"max-connections": 9, "shutdown_timeout": 60}
    assert application(flags, num_replicas=2, max_ongoing_requests=3) == "the application"
    assert asked["flags"] == flags
    assert asked["options"] == {
        "name": "jaxgen",
        "num_replicas": 2,
        "max_ongoing_requests": 3,
        "graceful_shutdown_timeout_s": 70.0,
    }
    build_app(flags)
    assert asked["options"]["max_ongoing_requests"] == 9


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"jaxgen.server.ray_serve needs ray: pip install -e '.\[ray\]'"):
        build_app({})


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> tuple[Replica, StartedEngine]:
    """A replica that has not begun, and its engine."""
    engine = StartedEngine(tokenizer=fake_engine().tokenizer)
    monkeypatch.setattr(ray_serve, "open_engine", lambda args: engine)
    return Replica.__new__(Replica), engine


def test_the_life_of_a_replica(tmp_path: Path, replica: tuple[Any, StartedEngine]) -> None:
    one, engine = replica

    async def live() -> None:
        await one.__init__(  # as Ray's wrapper does
            {"api-key": "k", "batch-dir": str(tmp_path)}
        )
        assert engine.calls == ["start", "wait_ready"]
        app = one.__serve_build_asgi_app__()
        assert (app.state.config.access.api_keys, app.state.config.batches.batch_dir) == (("k",), tmp_path)
        await one.check_health()
        for status in (EngineStatus("dead", "out of memory"), EngineStatus("ready", stalled_seconds=61.0)):
            engine.state = status
            with pytest.raises(RuntimeError, match=r"the engine is dead|finished no step for 61 s"):
                await one.check_health()
        one.__del__()
        assert engine.calls == ["start", "wait_ready", "stop"]

    asyncio.run(live())


def test_the_process_ends_with_its_engine_after_what_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replica: tuple[Any, StartedEngine]
) -> None:
    one, engine = replica
    noted: list[object] = []
    monkeypatch.setattr(os, "_exit", noted.append)
    monkeypatch.setattr(ray_serve, "TELLING_SECONDS", 0.0)

    async def live() -> None:
        await one.__init__({"batch-dir": str(tmp_path)})
        died = asyncio.Event()
        monkeypatch.setattr(ray_serve.logger, "error", lambda *said: died.set())

        async def is_asked() -> None:
            with one._served.state.lifecycle.request():
                engine.state = EngineStatus("dead", "out of memory")
                await died.wait()
                noted.append("its request has ended")

        await asyncio.gather(is_asked(), one._watch)

    asyncio.run(live())
    assert noted == ["its request has ended", 1]


def test_a_replica_that_ray_ends_ends_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replica: tuple[Any, StartedEngine]
) -> None:
    one, engine = replica
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    async def live() -> None:
        await one.__init__({"batch-dir": str(tmp_path)})
        one.__del__()
        engine.state = EngineStatus("dead", "the engine has stopped")
        await one._watch

    asyncio.run(live())
    assert codes == []
