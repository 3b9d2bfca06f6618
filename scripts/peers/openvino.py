"""OpenVINO GenAI: continuous batching with and without Dynamic SplitFuse, behind scripts/peers/token_server.py."""

import json
import os
import shutil
from dataclasses import dataclass
from typing import Any

from scripts.peers.environment import TORCH, Environment
from scripts.peers.peer import KV_CACHE_GIB, MAX_MODEL_LEN, MAX_NUM_SEQS, ROOT, Launch, Site, run_logged, token_ids

ENVIRONMENT = Environment(
    "openvino",
    (
        (TORCH,),
        ("openvino==2026.4.1", "openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "optimum-intel==2.2.0"),
    ),
    without=("torchvision",),  # built for torch with CUDA: importing it fails
)
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class OpenVino:
    """``kv_precision``: of keys and values; None keeps them in the dtype of the model, which is what others do."""

    name: str
    note: str
    dynamic_split_fuse: bool
    kv_precision: str | None = None
    usage: str = "continuous"

    def prepare(self, site: Site, dtype: str) -> None:
        ENVIRONMENT.make(site)
        source, target = site.checkpoint(dtype), site.converted("openvino", dtype)
        if target.exists():
            return
        unfinished = target.with_name(f"{dtype}-unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.openvino_convert", str(source), str(unfinished)]
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        run_logged(command, site.log(f"openvino-convert-{dtype}"), env, ROOT)
        unfinished.rename(target)

    def versions(self, site: Site) -> dict[str, str]:
        return ENVIRONMENT.versions(site, ("openvino", "openvino-genai"))

    def launch(self, site: Site, dtype: str, port: int) -> Launch:
        precision = PRECISIONS[dtype]
        settings = {
            "model": str(site.converted("openvino", dtype)),
            "port": port,
            "dynamic_split_fuse": self.dynamic_split_fuse,
            "cache_gib": KV_CACHE_GIB,
            "max_num_seqs": MAX_NUM_SEQS,
            "properties": {
                "INFERENCE_PRECISION_HINT": precision,
                "KV_CACHE_PRECISION": self.kv_precision or precision,
                "INFERENCE_NUM_THREADS": site.threads,
            },
        }
        if not self.dynamic_split_fuse:
            # A prompt is one step then, and must fit.
            settings["max_num_batched_tokens"] = MAX_MODEL_LEN
        command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.openvino_server", json.dumps(settings)]
        return Launch(command)

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)
