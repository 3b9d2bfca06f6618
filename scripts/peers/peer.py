"""Where a comparison keeps what it makes, what a peer is, and how one is started."""

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scripts.peers.shapes import ROOT, Format
from scripts.peers.tokenizers import TOKENIZERS, KnownTokenizer

MAX_MODEL_LEN = 8192
"""Tokens: agents' conversations have 5,240."""
MAX_NUM_SEQS = 64
"""Of every peer that takes such a limit: as many as jaxgen has by default, and as any load here has at once, except
one that falls behind."""
KV_CACHE_GIB = 4
SERVED_NAME = "model"


class PeerError(Exception):
    """A peer cannot be made, started or measured; the message says which command and what it printed last."""


@dataclass(frozen=True, slots=True)
class Site:
    """A directory of environments, weights and logs, used again by the next comparison."""

    work_dir: Path
    threads: int
    shape: str

    @property
    def cores(self) -> list[int]:
        """Cores that every server may use, as many as threads."""
        return sorted(os.sched_getaffinity(0))[: self.threads]

    @property
    def tokenizer(self) -> KnownTokenizer | None:
        """None: prompts and answers are token ids, and the checkpoint's tokens are made up."""
        return TOKENIZERS.get(self.shape)

    def checkpoint(self, dtype: str) -> Path:
        """The Hugging Face directory that all peers compute, in ``dtype``; made on the first call."""
        directory = self.work_dir / "models" / self._shape / dtype
        if not directory.exists():
            unfinished = directory.with_name(f"{dtype}-unfinished")
            command = [sys.executable, "-m", "scripts.make.random_model", "--shape", self.shape, "--dtype", dtype]
            flags = ["--max-position", str(MAX_MODEL_LEN), str(unfinished)]
            run_logged([*command, *flags], self.log(f"checkpoint-{self.shape}-{dtype}"), cwd=ROOT)
            if self.tokenizer is not None:
                self.tokenizer.install(unfinished)
            unfinished.rename(directory)
        return directory

    def gguf(self, wanted: Format) -> Path:
        """The GGUF file that all peers compute; made on the first call."""
        file = self.work_dir / "models" / self._shape / f"{wanted.name}.gguf"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished")
            command = [sys.executable, "-m", "scripts.make.random_gguf", "--shape", self.shape, "--type", wanted.name]
            run_logged([*command, str(unfinished)], self.log(f"gguf-{self.shape}-{wanted.name}"), cwd=ROOT)
            unfinished.rename(file)
        return file

    def converted(self, peer: str, wanted: Format) -> Path:
        """Where a peer keeps the same weights in a file format of its own."""
        return self.work_dir / "converted" / peer / self._shape / wanted.name

    @property
    def _shape(self) -> str:
        """Directories of another length would hold weights that are not good for this one."""
        return f"{self.shape}-{MAX_MODEL_LEN}"

    def log(self, name: str) -> Path:
        path = self.work_dir / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True, slots=True)
class Launch:
    """A server's command; ``env`` is added to the environment."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)


class Peer(Protocol):
    """A server under comparison, answering POST /v1/completions with prompts of token ids."""

    @property
    def name(self) -> str: ...

    @property
    def usage(self) -> str:
        """Token counts that its streams can have: continuous, final or none, as ``jaxgen benchmark --usage``."""
        ...

    @property
    def note(self) -> str:
        """How it is run, for the page."""
        ...

    @property
    def formats(self) -> Collection[str]:
        """Names of the formats that it computes."""
        ...

    def prepare(self, site: Site, wanted: Format) -> None:
        """Make the environment and the weights, or find them made. Raises PeerError."""
        ...

    def versions(self, site: Site) -> dict[str, str]:
        """Of what is measured, after ``prepare``."""
        ...

    def launch(self, site: Site, wanted: Format, port: int) -> Launch: ...

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Fields of a request whose answer must fit a JSON schema. Raises PeerError for a peer that cannot do it."""
        ...

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        """Ids of the tokens of an answer to a request with ``return_token_ids``, or of a piece of its stream."""
        ...


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the request field that jaxgen and vLLM have for a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
    return {"response_format": form}


def token_ids(answer: dict[str, Any]) -> list[int]:
    """As jaxgen and vLLM give them; a piece of an answer may have none."""
    return list(answer["choices"][0].get("token_ids") or ())


def run_logged(command: list[str], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run to the end with all output in ``log``. Raises PeerError with the last of it."""
    with log.open("a") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=env, cwd=cwd, check=False)
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)} ended with {done.returncode}:\n{last_lines(log)}")


def last_lines(log: Path, count: int = 12) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
