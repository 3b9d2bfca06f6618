"""llama.cpp's own server, built on this machine from the sources that the package llama-cpp-python brings."""

import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.peers.environment import Environment
from scripts.peers.peer import MAX_NUM_SEQS, ROOT, Launch, PeerError, Site, run_logged

VERSION = "0.3.36"
ENVIRONMENT = Environment(
    "llama.cpp", (("gguf==0.19.0", "safetensors==0.8.0", "ml_dtypes==0.6.0", "cmake==4.4.4", "ninja==1.13.0"),)
)
CONTEXT = 32768
"""Tokens of all sequences together."""
KV_TYPES = {"float32": "f32", "bfloat16": "f16"}
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    name: str = "llama.cpp"
    note: str = "`llama-server`, built for this machine; KV in f16 beside bfloat16 weights"
    usage: str = "final"

    def prepare(self, site: Site, dtype: str) -> None:
        ENVIRONMENT.make(site)
        if not _server(site).exists():
            _build(site)
        target = site.converted("llama.cpp", dtype) / "model.gguf"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished = target.with_suffix(".unfinished")
            command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.llama_convert"]
            command += [str(site.checkpoint(dtype)), str(unfinished)]
            run_logged(command, site.log(f"llama.cpp-convert-{dtype}"), cwd=ROOT)
            unfinished.rename(target)

    def versions(self, site: Site) -> dict[str, str]:
        # Its own --version is that of a build outside its repository, the same for all.
        ggml = subprocess.run([_server(site), "--version"], capture_output=True, text=True, check=True)
        built = next((line for line in (ggml.stdout + ggml.stderr).splitlines() if line.startswith("version")), "")
        return {"llama-cpp-python's sources": VERSION, "llama.cpp": built.removeprefix("version:").strip()}

    def launch(self, site: Site, dtype: str, port: int) -> Launch:
        flags = {
            "--model": str(site.converted("llama.cpp", dtype) / "model.gguf"),
            "--port": str(port),
            "--threads": str(site.threads),
            "--ctx-size": str(CONTEXT),
            "--parallel": str(MAX_NUM_SEQS),
            "--cache-type-k": KV_TYPES[dtype],
            "--cache-type-v": KV_TYPES[dtype],
            "--cache-ram": "0",
        }
        command = [str(_server(site)), "--kv-unified"]
        return Launch(command + [word for flag in flags.items() for word in flag])

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return [int(word.removeprefix("t")) for word in answer["choices"][0]["text"].split()]


def _server(site: Site) -> Path:
    return site.work_dir / "llama" / "build" / "bin" / "llama-server"


def _build(site: Site) -> None:
    log, directory = site.log("llama.cpp-build"), site.work_dir / "llama"
    print(f"llama.cpp: building its server (once, many minutes; {log})", flush=True)
    python = ENVIRONMENT.python(site)
    package = directory / f"llama_cpp_python-{VERSION}"
    if not package.exists():
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory)]
        run_logged([*pip, "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"], log)
        with tarfile.open(directory / f"{package.name}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    build, tools = directory / "build", python.parent
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    source = package / "vendor" / "llama.cpp"
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    run_logged([str(tools / "cmake"), "-S", str(source), "-B", str(build), "-G", "Ninja", *options], log, env)
    jobs = str(site.threads)
    run_logged([str(tools / "cmake"), "--build", str(build), "--target", "llama-server", "-j", jobs], log, env)
    if not _server(site).exists():
        raise PeerError(f"the build made no {_server(site)}; see {log}")
