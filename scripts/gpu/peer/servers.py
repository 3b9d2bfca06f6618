"""The servers: jaxgen, vLLM by its own Python, and any other that is given by its command or its address."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.gpu.peer.settings import Settings
from scripts.gpu.result.header import output_of, versions
from scripts.peers.peer import SERVED_NAME, Launch, PeerError
from scripts.peers.process import HOST

VLLM_PACKAGES = ("vllm", "torch", "transformers", "flashinfer-python", "triton")
VLLM_ATTEMPTS: dict[str, tuple[tuple[str, ...], float]] = {
    "default": ((), 150.0),
    "without compile": (("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'), 120.0),
    "eager": (("--enforce-eager",), 90.0),
}
"""Flags, and the seconds in which the server must be ready, in the order in which they are tried."""
VLLM_ENV = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # Neither this checkout nor the packages of this Python.
    "PYTHONPATH": "",
    "PYTHONSAFEPATH": "1",
}
OTHER_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to start a server. ``seconds``: in which it must be ready."""

    name: str
    launch: Callable[[int], Launch]
    seconds: float


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure. ``attempts``: tried in order until one is ready; none for a server that runs at ``url``.
    ``model``: its name in requests. ``versions``: of its packages."""

    name: str
    attempts: tuple[Attempt, ...]
    url: str = ""
    model: str = SERVED_NAME
    usage: str = "continuous"
    versions: dict[str, str] = field(default_factory=dict)


def jaxgen(settings: Settings, model: Path, work_dir: Path, load_format: str, flags: tuple[str, ...]) -> Server:
    """Return this checkout's server. Flags are part of its name: with others it is another one."""
    cache = work_dir / "jaxgen-cache"
    command = [sys.executable, "-m", "jaxgen.server.cli", "serve", "--model", str(model), "--load-format", load_format]
    command += ["--served-model-name", SERVED_NAME, "--cache-dir", str(cache), *settings.jaxgen_flags, *flags]

    def launch(port: int) -> Launch:
        return Launch([*command, "--port", str(port)], settings.environment)

    commit = output_of("git", "describe", "--always", "--dirty") or "unknown"
    known = {name: version for name, version in versions().items() if name.startswith(("jax", "python"))}
    attempt = Attempt("default", launch, settings.start_seconds)
    return Server(" ".join(("jaxgen", *flags)), (attempt,), versions={"jaxgen": commit, **known})


def vllm(
    settings: Settings, model: Path, python: str, load_format: str, flags: tuple[str, ...], env: dict[str, str]
) -> Server:
    """Return vLLM's own server, without versions."""
    named = {
        "--served-model-name": SERVED_NAME,
        "--host": HOST,
        "--load-format": load_format,
        "--max-model-len": str(settings.max_model_len),
        "--max-num-seqs": str(settings.max_num_seqs),
    }
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--disable-uvicorn-access-log"]
    command += [*(word for flag in named.items() for word in flag), *flags]

    def attempt(name: str) -> Attempt:
        more, seconds = VLLM_ATTEMPTS[name]
        return Attempt(name, lambda port: Launch([*command, *more, "--port", str(port)], VLLM_ENV | env), seconds)

    name = " ".join(("vLLM", *flags))
    return Server(name, tuple(map(attempt, VLLM_ATTEMPTS)))


def vllm_versions(python: str, env: dict[str, str]) -> dict[str, str]:
    """Return the versions of vLLM and what it runs on. Raises PeerError where this Python has no vLLM."""
    code = (
        "import importlib.metadata as m, json\n"
        f"names = {{d.metadata['Name']: d.version for d in m.distributions()}}\n"
        f"print(json.dumps({{name: names[name] for name in {VLLM_PACKAGES} if name in names}}))"
    )
    try:
        command, known = [python, "-c", code], {**os.environ, **VLLM_ENV, **env}
        done = subprocess.run(command, env=known, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"--peer-python {python} does not run: {error}") from error
    found: dict[str, str] = json.loads(done.stdout)
    if "vllm" not in found:
        raise PeerError(f"--peer-python {python} has no package vllm: name the Python that has it")
    return found


def by_command(text: str, name: str, model: Path, served: str, usage: str, env: dict[str, str]) -> Server:
    """Return the server that a command starts, with {model}, {port} and {name} filled in. Raises PeerError."""
    words = shlex.split(text)
    if not any("{port}" in word for word in words):
        raise PeerError("--peer-command has no {port}: say where the port goes, such as --port {port}")

    def launch(port: int) -> Launch:
        filled = {"{model}": str(model), "{port}": str(port), "{name}": served}
        command = list(words)
        for old, new in filled.items():
            command = [word.replace(old, new) for word in command]
        return Launch(command, env)

    return Server(name, (Attempt("default", launch, OTHER_SECONDS),), model=served, usage=usage)


def by_url(url: str, name: str, served: str, usage: str) -> Server:
    """Return a server that runs already."""
    return Server(name, (), url=url.rstrip("/"), model=served, usage=usage)


def fake() -> Server:
    """Return the server in vLLM's place in a dry run. It computes nothing, and its first attempt fails."""
    broken = Launch([sys.executable, "-c", "raise SystemExit('this attempt fails in a dry run')"])

    def launch(port: int) -> Launch:
        return Launch([sys.executable, "-m", "tests.support.fake_peer", str(port), "0"])

    attempts = Attempt("default", lambda _: broken, 10.0), Attempt("without compile", launch, 30.0)
    return Server("fake server", attempts, versions={"fake": "1"})
