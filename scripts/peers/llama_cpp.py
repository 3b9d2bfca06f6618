"""llama.cpp's own server, built on this machine from the sources that the package llama-cpp-python brings.

Weights of 8 and 4 bits are its own tool's, llama-quantize, with its defaults: Q8_0 and Q4_0, blocks of 32 with a scale
each, the tied head of Q4_0 as Q6_K.
"""

import os
import subprocess
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.peers.environment import Environment
from scripts.peers.peer import MAX_NUM_SEQS, Launch, PeerError, Site, run_logged
from scripts.peers.shapes import FORMATS, ROOT, Format

VERSION = "0.3.36"
ENVIRONMENT = Environment(
    "llama.cpp", (("gguf==0.19.0", "safetensors==0.8.0", "ml_dtypes==0.6.0", "cmake==4.4.4", "ninja==1.13.0"),)
)
CONTEXT = 65536
"""Tokens of all sequences together."""
KV_TYPES = {"float32": "f32", "bfloat16": "f16"}
ROUNDED = {"int8": "Q8_0", "int4": "Q4_0"}
TOOLS = ("llama-server", "llama-quantize")
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
    note: str = "`llama-server`, built for this machine; KV in f16, except with float32 weights; 8 bits: Q8_0, 4: Q4_0"
    usage: str = "final"
    formats: Collection[str] = frozenset(FORMATS)

    def prepare(self, site: Site, wanted: Format) -> None:
        ENVIRONMENT.make(site)
        if not all(_tool(site, name).exists() for name in TOOLS):
            build(site)
        target = _model(site, wanted)
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished, log = target.with_suffix(".unfinished"), site.log(f"llama.cpp-convert-{site.shape}-{wanted.name}")
        command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.llama_convert"]
        splitting = [] if site.tokenizer is None else [site.tokenizer.splitting]
        run_logged([*command, str(site.checkpoint(wanted.dtype)), str(unfinished), *splitting], log, cwd=ROOT)
        if wanted.is_quantised:
            whole = unfinished.rename(target.with_suffix(".whole"))
            run_logged([str(_tool(site, "llama-quantize")), str(whole), str(unfinished), ROUNDED[wanted.name]], log)
            whole.unlink()
        unfinished.rename(target)

    def versions(self, site: Site) -> dict[str, str]:
        # Its own --version is that of a build outside its repository, the same for all.
        ggml = subprocess.run([_tool(site, "llama-server"), "--version"], capture_output=True, text=True, check=True)
        built = next((line for line in (ggml.stdout + ggml.stderr).splitlines() if line.startswith("version")), "")
        return {"llama-cpp-python's sources": VERSION, "llama.cpp": built.removeprefix("version:").strip()}

    def launch(self, site: Site, wanted: Format, port: int) -> Launch:
        flags = {
            "--model": str(_model(site, wanted)),
            "--port": str(port),
            "--threads": str(site.threads),
            "--ctx-size": str(CONTEXT),
            "--parallel": str(MAX_NUM_SEQS),
            "--cache-type-k": KV_TYPES[wanted.dtype],
            "--cache-type-v": KV_TYPES[wanted.dtype],
            "--cache-ram": "0",
        }
        command = [str(_tool(site, "llama-server")), "--kv-unified"]
        return Launch(command + [word for flag in flags.items() for word in flag])

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {"json_schema": schema}

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return [int(word.removeprefix("t")) for word in answer["choices"][0]["text"].split()]


def _model(site: Site, wanted: Format) -> Path:
    return site.gguf(wanted) if wanted.is_file else site.converted("llama.cpp", wanted) / "model.gguf"


def _tool(site: Site, name: str) -> Path:
    return site.work_dir / "llama" / "build" / "bin" / name


def build(site: Site) -> None:
    """Build the tools. Raises PeerError."""
    log, directory = site.log("llama.cpp-build"), site.work_dir / "llama"
    print(f"llama.cpp: building it (once, many minutes; {log})", flush=True)
    python = ENVIRONMENT.python(site)
    package = directory / f"llama_cpp_python-{VERSION}"
    if not package.exists():
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory)]
        run_logged([*pip, "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"], log)
        with tarfile.open(directory / f"{package.name}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    build_dir, tools = directory / "build", python.parent
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    source = package / "vendor" / "llama.cpp"
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    run_logged([str(tools / "cmake"), "-S", str(source), "-B", str(build_dir), "-G", "Ninja", *options], log, env)
    jobs = str(site.threads)
    run_logged([str(tools / "cmake"), "--build", str(build_dir), "--target", *TOOLS, "-j", jobs], log, env)
    for name in TOOLS:
        if not _tool(site, name).exists():
            raise PeerError(f"the build made no {_tool(site, name)}; see {log}")
