"""Parse the flags of ``jaxgen serve``, from the command line, the environment or a file, in this order."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxgen.core.config import KERNEL_CHOICES, KV_RESIDENCIES, OFFLOAD_POLICIES, EngineOptions
from jaxgen.core.host_dtype import HOST_DTYPES
from jaxgen.core.model_info import POOLING_CHOICES
from jaxgen.server.flags.server_flags import add_server_groups, fill_in_address
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
        result = super().parse_args(args)
        fill_in_address(self, result)
        return result

    def hint(self, flag: str) -> str:
        """Return what to do in place of a flag that vLLM has and jaxgen has not, or which may have been meant."""
        instead = _INSTEAD.get(flag.partition("=")[0].replace("_", "-"))
        return super().hint(flag) if instead is None else f"; {instead}"


_REPLICAS = "run a server on each device, behind a router (docs/replicas.md)"
_LAYERS = "--tensor-parallel-size divides a model between devices of one host"
_INSTEAD = {
    "--pipeline-parallel-size": _LAYERS,
    "-pp": _LAYERS,
    "--data-parallel-size": _REPLICAS,
    "-dp": _REPLICAS,
}
"""Flags of vLLM that are not here, and what to do."""

SERVES = "Serve a model with the APIs of OpenAI (/v1/chat/completions and others) and Anthropic (/v1/messages)."


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
        help="accepted for vLLM's command lines: a multimodal model is always served as a text model",
    )
    model.add_argument("--served-model-name", help="name of the model in the API (default: the value of --model)")
    add_load_format_flag(
        model,
        "auto: load the model's weights; dummy: make random weights, to measure speed and memory without weight files",
    )
    add_dtype_flag(
        model, "dtype of weights and activations; auto: the checkpoint's, or float32 where the device is faster with it"
    )
    add_quantization_flag(
        model,
        "int8, int4, fp8: quantize the weights at load; fp8, fp4: keep those of FP8 and FP4 checkpoints, which none "
        "converts to --dtype; fp8_dynamic: fp8, with activations in FP8 too; AWQ and GPTQ always stay quantized",
    )
    model.add_argument(
        "--tokenizer",
        help="directory or Hugging Face name of the tokenizer and its chat template (default: the model's)",
    )
    model.add_argument(
        "--generation-config",
        default="auto",
        metavar="auto|none|DIR",
        help="defaults of temperature, top_p, top_k, min_p, repetition_penalty and max_tokens; auto: from the model's "
        "generation_config.json; none (or vllm): no file; else from the file in this directory",
    )
    model.add_argument(
        "--chat-template",
        metavar="NAME_OR_FILE",
        help=f"a built-in template ({', '.join(TEMPLATE_NAMES)}) or a Jinja file (default: the model's)",
    )
    model.add_argument(
        "--tool-call-parser",
        choices=TOOL_PARSERS,
        default="auto",
        metavar="auto|none|NAME",
        help="format of the model's tool calls; auto: found in its chat template; none: no tool calls; or one of "
        f"{', '.join(TOOL_SIGNS)}",
    )
    model.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default="auto",
        metavar="auto|none|NAME",
        help="format of the model's reasoning; auto: found in its chat template; none: reasoning stays in the answer; "
        f"or one of {', '.join(REASONING_SIGNS)}",
    )
    model.add_argument(
        "--structured-additional-properties",
        action="store_true",
        help="let objects have keys that their JSON schema does not name, unless it forbids them",
    )
    model.add_argument(
        "--pooling",
        choices=POOLING_CHOICES,
        default="auto",
        help="which hidden states give an embedding: their mean, the last, or the first (cls); auto: as the model's "
        "modules.json says, else the mean",
    )


def _add_steps(engine: Any) -> None:
    engine.add_argument(
        "--speculative-config",
        metavar="JSON",
        help="draft tokens and check several of a request in one step, which changes no answer; on CPUs; keys: method "
        "(ngram or suffix), and those of the method",
    )
    engine.add_argument(
        "--kernels",
        choices=KERNEL_CHOICES,
        default="auto",
        help="auto: the fastest kernels that pass a self-test on the device; prove: the same, and repeat the self-test "
        "of GPU kernels; unproven: use GPU kernels without a self-test; xla: only XLA's",
    )
    engine.add_argument(
        "--max-model-len", type=int, help="most tokens of a prompt and its answer together (default: what fits)"
    )
    engine.add_argument(
        "--token-budget",
        "--max-num-batched-tokens",
        type=int,
        help="most tokens of a step (default: the best that jaxgen tune measured, else by device)",
    )
    engine.add_argument("--max-num-seqs", type=int, help="most sequences in a step (default: by device and model)")
    engine.add_argument("--block-size", type=int, help="tokens in a block of the KV cache (default: 64)")
    engine.add_argument("--num-blocks", type=int, help="blocks in the KV cache (default: what fits)")
    engine.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of an accelerator's memory to use"
    )
    engine.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=1,
        help="devices between which the model is divided",
    )
    engine.add_argument(
        "--background-tokens",
        type=int,
        help="most tokens of batch jobs in a step with other requests (default: 0 on CPUs, else all unused tokens)",
    )
    engine.add_argument(
        "--single-shape",
        action="store_true",
        help="use one program for all steps, without the narrower one for steps that only decode",
    )
    engine.add_argument(
        "--seed",
        type=int,
        help="seed for requests that give none: the same requests in the same order get the same answers",
    )


def _add_kv_cache(engine: Any) -> None:
    engine.add_argument(
        "--enable-prefix-caching",
        dest="prefix_caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse the KV cache of earlier requests with the same beginning",
    )
    add_kv_cache_dtype_flag(
        engine,
        "dtype of the KV cache; auto: the model's dtype; int8, fp8: 8 bits and a scale for each token and KV head: "
        "half the memory, with an error",
    )
    engine.add_argument(
        "--kv-offloading-size",
        type=float,
        default=0.0,
        help="GiB of host memory for KV blocks that are moved off the device; with --kv-residency host, for all blocks",
    )
    engine.add_argument(
        "--kv-offload-policy",
        choices=OFFLOAD_POLICIES,
        default="plan",
        help="how offloaded KV blocks are restored; plan: the fastest mix by measured rates; transfer: all copied; "
        "recompute: all computed again",
    )
    engine.add_argument(
        "--kv-residency",
        choices=KV_RESIDENCIES,
        default="device",
        help="where the KV cache is kept; host: in host memory, and copied to the device in each step; "
        "auto: host if the device cannot hold the longest sequence",
    )
    engine.add_argument(
        "--kv-host-dtype",
        choices=HOST_DTYPES,
        default="auto",
        help="dtype of offloaded KV blocks; auto: as on the device; int8, int4: quantized by groups, with an error",
    )
    engine.add_argument(
        "--kv-offload-inputs",
        action="store_true",
        help="also keep the inputs of layers, to compute K and V from: less to copy back for models without GQA, "
        "but more memory on device and host",
    )
    engine.add_argument(
        "--kv-tier",
        metavar="DIR|URL",
        help="keep offloaded KV blocks after the server ends, for later starts and other servers: a directory, "
        "redis://HOST, rediss://HOST or s3://BUCKET/PREFIX",
    )
    engine.add_argument("--kv-tier-dir", metavar="DIR", help="the same as --kv-tier DIR")
    engine.add_argument(
        "--kv-tier-password",
        metavar="PASSWORD",
        help="password of the redis server; set it as JAXGEN_KV_TIER_PASSWORD, because ps shows flags",
    )
    engine.add_argument(
        "--kv-tier-key",
        metavar="KEY",
        help="secret that authenticates values of the KV tier, the same for all servers that share it; set it as "
        "JAXGEN_KV_TIER_KEY, because ps shows flags",
    )
    engine.add_argument("--kv-tier-size", type=float, default=16.0, help="size limit of the KV tier in GiB")
    engine.add_argument(
        "--kv-events-config",
        metavar="JSON",
        help="publish the prefixes in the KV cache, as vLLM does; keys: endpoint (tcp://*:5557), replay_endpoint, "
        "topic, buffer_steps, hwm, max_queue_size (needs the extra events)",
    )


def _add_cache(cache: Any) -> None:
    cache.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="directory of compiled programs and converted models, for faster starts (default: the user's cache)",
    )
    cache.add_argument(
        "--no-compilation-cache",
        dest="compilation_cache",
        action="store_false",
        help="compile at every start, and keep no compiled programs",
    )
