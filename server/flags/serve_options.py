"""Parse the flags of ``jaxgen serve``, from the command line, the environment or a file, in this order."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxgen.core.config import KERNEL_CHOICES, KV_RESIDENCIES, OFFLOAD_POLICIES, EngineOptions
from jaxgen.core.host_dtype import HOST_DTYPES
from jaxgen.core.model_info import POOLING_CHOICES
from jaxgen.server.flags.server_flags import add_server_groups, settle_address
from jaxgen.server.tool_calls.recognised import REASONING_PARSERS, REASONING_SIGNS, TOOL_PARSERS, TOOL_SIGNS
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.model_flags import (
    add_dtype_flag,
    add_hub_flags,
    add_kv_cache_dtype_flag,
    add_load_format_flag,
    add_model_flag,
    add_quantization_flag,
)
from jaxgen.text.named_templates import TEMPLATE_NAMES


class ServeLine(CommandLine):
    """The parser of ``jaxgen serve``."""

    def parse_args(self, args: Sequence[str] | None = None) -> Any:
        found = super().parse_args(args)
        settle_address(self, found)
        return found


SERVES = "Serve a model at /v1/completions, /v1/chat/completions, /v1/responses and /v1/embeddings."


def make_parser(command: str = "serve", does: str = SERVES, kind: type[ServeLine] = ServeLine) -> CommandLine:
    """Return the parser. Every flag can also be set by a variable JAXGEN_<FLAG>, and in the file of ``--config``.

    ``does``: what the command does, in a sentence of its help. ``kind``: of the parser.
    """
    parser = kind(
        prog=f"jaxgen {command}",
        description=f"{does} Each flag can also be set by a variable, --max-num-seqs by JAXGEN_MAX_NUM_SEQS, or in the "
        "file of --config; the command line wins, then the variable (docs/configuration.md).",
        auto_env_var_prefix="JAXGEN_",
        bare="model",
    )
    parser.add_argument("--config", is_config_file=True, metavar="FILE", help="YAML with these flags, without dashes")
    _add_model(parser.add_argument_group("model"))
    engine = parser.add_argument_group("engine")
    _add_steps(engine)
    _add_kv_cache(engine)
    _add_cache(parser.add_argument_group("cache"))
    add_server_groups(parser)
    return parser


def engine_options(args: Any) -> EngineOptions:
    """Return the engine's options from the flags."""
    names = EngineOptions.__dataclass_fields__
    return EngineOptions(**{name: getattr(args, name) for name in names})


def _add_model(model: Any) -> None:
    add_model_flag(model)
    add_hub_flags(model)
    model.add_argument(
        "--language-model-only",
        action="store_true",
        help="changes nothing: of models of images and text only the text is served in any case",
    )
    model.add_argument("--served-model-name", help="name in the API (default: as given to --model)")
    add_load_format_flag(
        model,
        "where weights come from; auto: the model's files; dummy: random numbers in their place, made on the device, "
        "to measure speed and memory: --model needs no weight files then",
    )
    add_dtype_flag(model, "auto: the checkpoint's own, or float32 where the device computes that faster")
    add_quantization_flag(
        model,
        "round weights to 8 or 4 bits when they are loaded; fp8, fp4: also keep the codes of a checkpoint in them (fp4 "
        "does this alone); checkpoints of integers stay as they are",
    )
    model.add_argument(
        "--tokenizer", help="directory or hub id of the tokenizer and its chat template (default: the model's own)"
    )
    model.add_argument(
        "--generation-config",
        default="auto",
        metavar="auto|none|DIR",
        help="where temperature, top_p, top_k, min_p, repetition_penalty and max_new_tokens come from if a request "
        "leaves them out; auto: the model's generation_config.json; none (or vllm): no file; else the directory of one",
    )
    model.add_argument(
        "--chat-template",
        metavar="NAME_OR_FILE",
        help=f"{', '.join(TEMPLATE_NAMES)}, which ship with jaxgen, or a file with a Jinja template (default: the "
        "model's own)",
    )
    model.add_argument(
        "--tool-call-parser",
        choices=TOOL_PARSERS,
        default="auto",
        metavar="auto|none|NAME",
        help="how the model writes calls of tools; auto: as its chat template shows; none: it calls none; else one of "
        f"{', '.join(TOOL_SIGNS)}",
    )
    model.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default="auto",
        metavar="auto|none|NAME",
        help="how the model writes what it thinks before it answers; auto: as its chat template shows; none: that is "
        f"part of the answer; else one of {', '.join(REASONING_SIGNS)}",
    )
    model.add_argument(
        "--structured-additional-properties",
        action="store_true",
        help="objects of a JSON schema may have other keys than its properties, as JSON Schema says where a schema "
        "does not forbid it (default: they may not)",
    )
    model.add_argument(
        "--pooling",
        choices=POOLING_CHOICES,
        default="auto",
        help="which hidden states embed a text: their mean, the last, or the first (cls); auto: as the model's "
        "modules.json says, else the mean",
    )


def _add_steps(engine: Any) -> None:
    engine.add_argument(
        "--kernels",
        choices=KERNEL_CHOICES,
        default="auto",
        help="auto: the fastest that prove right on the device, those for GPUs in a process of their own and once; "
        "prove: the same with a new proof; unproven: those for GPUs without one; xla: XLA's everywhere",
    )
    engine.add_argument("--max-model-len", type=int, help="longest prompt + answer, tokens (default: what fits)")
    engine.add_argument(
        "--token-budget",
        "--max-num-batched-tokens",
        type=int,
        help="tokens in every step (default: as jaxgen tune measured, else a rule for the device)",
    )
    engine.add_argument("--max-num-seqs", type=int, help="most sequences in a step")
    engine.add_argument("--block-size", type=int, help="tokens in a block of the KV cache")
    engine.add_argument("--num-blocks", type=int, help="blocks in the KV cache (default: what fits)")
    engine.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of an accelerator's memory to use"
    )
    engine.add_argument(
        "--background-tokens",
        type=int,
        help="most tokens of batches in a step that has other requests (default: 0 on CPUs, else what these leave "
        "over)",
    )
    engine.add_argument(
        "--single-shape",
        action="store_true",
        help="one program for all steps, even where a narrow one for decodes is faster and gives the same bits",
    )
    engine.add_argument("--seed", type=int, help="makes requests without a seed repeatable, in order of arrival")


def _add_kv_cache(engine: Any) -> None:
    engine.add_argument(
        "--enable-prefix-caching",
        dest="prefix_caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the KV of requests for later ones that begin alike",
    )
    add_kv_cache_dtype_flag(
        engine,
        "what the KV cache has of keys and values; auto: numbers of the model's dtype; int8, fp8: codes of 8 bits with "
        "a scale for each token and KV head, half the bytes of bfloat16, with an error",
    )
    engine.add_argument(
        "--kv-offloading-size",
        type=float,
        default=0.0,
        help="GiB of host memory for KV blocks that leave the device, or for all (0: none)",
    )
    engine.add_argument(
        "--kv-offload-policy",
        choices=OFFLOAD_POLICIES,
        default="plan",
        help="how they come back: as measured rates say, all copied, or all computed again",
    )
    engine.add_argument(
        "--kv-residency",
        choices=KV_RESIDENCIES,
        default="device",
        help="where the KV cache is; host: in --kv-offloading-size GiB of host memory, and each step brings it to the "
        "device layer by layer; auto: there if the device cannot hold the longest sequence",
    )
    engine.add_argument(
        "--kv-host-dtype",
        choices=HOST_DTYPES,
        default="auto",
        help="auto: as on the device, to the bit; int8, int4: quantised by groups, with an error",
    )
    engine.add_argument(
        "--kv-offload-inputs",
        action="store_true",
        help="keep layer inputs too, from which K and V are made again: fewer bytes to copy back where attention has "
        "as many KV heads as heads, more memory on device and host",
    )
    engine.add_argument(
        "--kv-tier",
        metavar="DIR|URL",
        help="keeps KV blocks beyond the process, behind host memory, where a later start finds prefixes: a directory, "
        "redis://HOST, rediss://HOST or s3://BUCKET/PREFIX",
    )
    engine.add_argument("--kv-tier-dir", metavar="DIR", help="the same, of a directory")
    engine.add_argument(
        "--kv-tier-password",
        metavar="PASSWORD",
        help="of a redis server; better set as JAXGEN_KV_TIER_PASSWORD, since ps shows flags",
    )
    engine.add_argument(
        "--kv-tier-key",
        metavar="KEY",
        help="secret by which values of the KV tier are authenticated, the same for all that share it; better set as "
        "JAXGEN_KV_TIER_KEY, since ps shows flags",
    )
    engine.add_argument("--kv-tier-size", type=float, default=16.0, help="most GiB of the KV tier")
    engine.add_argument(
        "--kv-events-config",
        metavar="JSON",
        help="publishes which prefixes the KV cache holds, with their tokens, as vLLM does: keys endpoint "
        "(tcp://*:5557), replay_endpoint, topic, buffer_steps, hwm, max_queue_size (needs the extra events)",
    )


def _add_cache(cache: Any) -> None:
    cache.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="keeps what speeds up the next start (default: the user's cache)"
    )
    cache.add_argument(
        "--no-compilation-cache",
        dest="compilation_cache",
        action="store_false",
        help="compile at every start, and keep no compiled program",
    )
