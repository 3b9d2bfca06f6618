"""Dockerfile, compose.yaml and docs/kubernetes/ agree with the project and each other. They are read, not run, but for
the health check."""

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml

from jaxgen.server.flags.serve_options import make_parser
from tests.house.test_kubernetes import pod
from tests.support.paths import ROOT

PORT = 8000


def lines() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, lines that go on joined, and their arguments."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """By name, each with the instructions of the stages that it builds on."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in lines():
        if word == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            found[name] = list(found.get(image, []))
        else:
            found[name].append((word, rest))
    return found


def of(stage: str, instruction: str) -> list[str]:
    return [rest for word, rest in stages()[stage] if word == instruction]


def environment(stage: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in of(stage, "ENV") for pair in rest.split())


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return found


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignore[0] == "*"
    kept = [pattern[1:] for pattern in ignore if pattern.startswith("!")]
    for stage in stages():
        for rest in of(stage, "COPY"):
            if rest.startswith("--from="):
                source = rest.split()[0].removeprefix("--from=")
                assert source in stages()
                continue
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert any(fnmatch(source, pattern) for pattern in kept), source


def test_every_package_and_file_that_the_build_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    needed = packages | {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    copied = {source for rest in of("sources", "COPY") for source in rest.split()[:-1]}
    assert needed <= copied
    installs = [rest for stage in ("build-cpu", "build-cuda") for rest in of(stage, "RUN") if "pip install" in rest]
    assert len(installs) == 2
    extras = project["project"]["optional-dependencies"]
    (default,) = re.findall(r"CUDA=(\w+)", " ".join(of("build-cuda", "ARG")))
    for install in installs:
        asked = re.findall(r'"\.\[(.*)\]"', install)[0].replace("${CUDA}", default)
        assert set(asked.split(",")) <= set(extras)
        assert re.findall(r"--constraint (\S+)", install)[0] in copied


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_both_targets_run_as_the_same_user_without_rights(target: str) -> None:
    (user,) = of(target, "USER")
    uid = user.split(":")[0]
    assert uid != "0"
    assert f"--uid {uid}" in " ".join(of(target, "RUN"))
    assert stages()[target][-1] == ("USER", user), "nothing comes after it"
    assert pod()["securityContext"]["runAsUser"] == int(uid)
    assert pod()["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_variables_are_flags_and_ports_agree(target: str) -> None:
    flags = {f"JAXGEN_{name[2:].upper().replace('-', '_')}" for name in make_parser()._option_string_actions}
    found = environment(target)
    assert {name for name in found if name.startswith("JAXGEN_")} <= flags
    assert found["JAXGEN_HOST"] == "0.0.0.0"
    assert int(found["JAXGEN_PORT"]) == PORT == make_parser().parse_args([]).port
    assert of(target, "EXPOSE") == [str(PORT)]
    assert of(target, "ENTRYPOINT") == ['["jaxgen", "serve"]']
    (volume,) = of(target, "VOLUME")
    assert found["JAXGEN_CACHE_DIR"].startswith(f"{volume}/")
    assert found["HF_HOME"].startswith(f"{volume}/")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_health_check_is_python_that_asks_a_probe(target: str) -> None:
    (check,) = of(target, "HEALTHCHECK")
    _, _, command = check.partition("CMD ")
    program, flag, source = yaml.safe_load(command)
    assert (program, flag) == ("python", "-c")
    compile(source, "HEALTHCHECK", "exec")
    (path,) = re.findall(r"\}(/\w+)", source)
    assert path == "/livez", "a container that drains is not to be replaced"


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_the_server_itself(status: int, code: int) -> None:
    """Not a proxy: Docker puts a user's proxies into each container."""

    class Probe(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    *_, source = yaml.safe_load(of("cpu", "HEALTHCHECK")[0].partition("CMD ")[2])
    with HTTPServer(("127.0.0.1", 0), Probe) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
        found = {**os.environ, **proxies, "no_proxy": "", "JAXGEN_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, "-c", source], env=found, capture_output=True, check=False)
        server.shutdown()
    assert done.returncode == code, done.stderr


def test_compose() -> None:
    for name, service in compose()["services"].items():
        assert service["build"]["target"] == name
        assert name in stages()
        (port,) = service["ports"]
        assert port == f"127.0.0.1:{PORT}:{PORT}"
        args = make_parser().parse_args(service["command"])
        assert int(service["stop_grace_period"].removesuffix("s")) > args.shutdown_timeout
        cache = next(volume for volume in service["volumes"] if volume.startswith("cache:"))
        assert cache == "cache:/cache"
    assert "cache" in compose()["volumes"]
    assert compose()["services"]["cuda"]["profiles"] == ["cuda"]
