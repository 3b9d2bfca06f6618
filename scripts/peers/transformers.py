"""transformers: ``generate`` with static batches, and its continuous batching, behind scripts/peers/token_server.py.

``transformers serve`` has no prompts of token ids and no way to ignore EOS.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from scripts.peers.environment import TORCH, Environment
from scripts.peers.peer import MAX_NUM_SEQS, Launch, PeerError, Site, token_ids
from scripts.peers.shapes import UNROUNDED, Format

ENVIRONMENT = Environment("transformers", ((TORCH,), ("transformers==5.19.0", "accelerate==1.15.0", "psutil==7.2.2")))
CACHE_TOKENS = 65536


@dataclass(frozen=True, slots=True)
class Transformers:
    """``batching``: static or continuous."""

    name: str
    note: str
    batching: str
    usage: str = "continuous"
    formats: Collection[str] = UNROUNDED

    def prepare(self, site: Site, wanted: Format) -> None:
        ENVIRONMENT.make(site)
        site.checkpoint(wanted.dtype)

    def versions(self, site: Site) -> dict[str, str]:
        return ENVIRONMENT.versions(site, ("transformers", "torch"))

    def launch(self, site: Site, wanted: Format, port: int) -> Launch:
        settings = {
            "model": str(site.checkpoint(wanted.dtype)),
            "port": port,
            "dtype": wanted.dtype,
            "batching": self.batching,
            "threads": site.threads,
            "max_num_seqs": MAX_NUM_SEQS,
            "cache_tokens": CACHE_TOKENS,
        }
        command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.transformers_server", json.dumps(settings)]
        return Launch(command, {"HF_HUB_OFFLINE": "1"})

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        raise PeerError("transformers has no answers under a schema")

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)
