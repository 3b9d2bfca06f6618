"""OpenVINO GenAI: continuous batching with and without Dynamic SplitFuse, behind scripts/peers/token_server.py."""

import json
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from scripts.peers.environment import TORCH, Environment
from scripts.peers.loads.forms import expression
from scripts.peers.peer import (
    KV_CACHE_GIB,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    Launch,
    Site,
    run_logged,
    token_ids,
)
from scripts.peers.shapes import OF_CHECKPOINTS, ROOT, Format

ENVIRONMENT = Environment(
    "openvino",
    (
        (TORCH,),
        (
            TORCH,  # again, or what comes along brings one for CUDA
            "openvino==2026.4.1",
            "openvino-genai==2026.4.1.0",
            "openvino-tokenizers==2026.4.1.0",
            "optimum-intel==2.2.0",
            "nncf==3.4.0",
        ),
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
    formats: Collection[str] = OF_CHECKPOINTS

    def prepare(self, site: Site, wanted: Format) -> None:
        ENVIRONMENT.make(site)
        source, target = site.checkpoint(wanted.dtype), site.converted("openvino", wanted)
        if target.exists():
            return
        unfinished = target.with_name(f"{wanted.name}-unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        python = ENVIRONMENT.python(site)
        command = [str(python), "-m", "scripts.peers.openvino_convert", str(source), str(unfinished)]
        if wanted.is_quantised:  # as people do it: the tool's defaults
            tool = [str(python.with_name("optimum-cli")), "export", "openvino", "--task", "text-generation-with-past"]
            command = [*tool, "--model", str(source), "--weight-format", wanted.name, str(unfinished)]
        # Before it rounds, the tool writes the whole model into a temporary directory.
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(unfinished.parent)}
        run_logged(command, site.log(f"openvino-convert-{site.shape}-{wanted.name}"), env, ROOT)
        unfinished.rename(target)

    def versions(self, site: Site) -> dict[str, str]:
        return ENVIRONMENT.versions(site, ("openvino", "openvino-genai", "optimum-intel", "nncf"))

    def launch(self, site: Site, wanted: Format, port: int) -> Launch:
        precision = PRECISIONS[wanted.dtype]
        settings = {
            "model": str(site.converted("openvino", wanted)),
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

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Give the schema as a regular expression: OpenVINO's JSON schemas allow endless white space."""
        return {"regex": expression(schema)}

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)
