"""``jaxgen models``: list the model families that are served, or say what directories and hub ids are."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError, one_line
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.model_flags import add_hub_flags, hub_options
from jaxgen.text.tokenizer_cache import tokenizer_problem
from jaxgen.weights.outline.gguf import gguf_headers, gguf_outlines
from jaxgen.weights.outline.huggingface import outlines
from jaxgen.weights.packaged.files import packaged_file
from jaxgen.weights.packaged.models import PACKAGED_MODELS
from jaxgen.weights.resolve import resolve_model
from jaxgen.weights.summary import ModelSummary, served_architectures, summarize


def make_parser() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog="jaxgen models",
        description="List the model families that are served and their architectures, as config.json names them, and "
        "the models that have names here. With names, directories, GGUF files or hub ids say what each is, one line "
        "each; of a hub id only the configuration and the headers of the weights are fetched. Exit status: 0 all are "
        "supported, 1 one is not.",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="name, directory, GGUF file or hub id")
    add_hub_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run ``jaxgen models``; return 0, or 1 if a model that was named is not supported."""
    args = make_parser().parse_args(argv)
    if not args.models:
        _print_families(args.json)
        return 0
    facts_by_model = {model: look_at(model, hub_options(args)) for model in args.models}
    if args.json:
        print(json.dumps([{"model": model, **as_json(facts)} for model, facts in facts_by_model.items()], indent=1))
    else:
        for model, facts in facts_by_model.items():
            print(f"{model}: {_line(facts)}")
    return 1 if any(facts.problem for facts in facts_by_model.values()) else 0


def look_at(model: str, hub: HubOptions) -> ModelSummary:
    """Return what a directory, a GGUF file or a hub id is; what cannot be read is not supported."""
    try:
        with outlines() as fetch, gguf_headers() as fetch_gguf, gguf_outlines() as of_gguf:
            found = packaged_file(model, hub) or model
            directory = resolve_model(found, hub, fetch=fetch, fetch_gguf=fetch_gguf, of_gguf=of_gguf)
            facts = summarize(directory)
            problem = facts.problem or tokenizer_problem(directory)
        # the directory of a hub id's outline is gone by now
        return replace(facts, problem=problem.replace(str(directory), model))
    except ConfigError as error:
        return ModelSummary(problem=one_line(str(error)).removeprefix(f"--model {model}: "))


def as_json(facts: ModelSummary) -> dict[str, Any]:
    """Return the facts as JSON has them."""
    return {**asdict(facts), "problem": facts.problem or None, "supported": not facts.problem}


def _line(facts: ModelSummary) -> str:
    known = str(facts)
    if not facts.problem:
        return f"{known}: supported{', for embeddings alone' if facts.generates is False else ''}"
    return f"{known}: not supported: {facts.problem}" if known else f"not supported: {facts.problem}"


def _print_families(as_object: bool) -> None:
    families = served_architectures()
    if as_object:
        print(json.dumps(families, indent=1))
        return
    for family, architectures in families.items():
        print(f"{family:12} {', '.join(architectures)}")
    print("\nby name, as --model NAME:")
    for name, model in PACKAGED_MODELS.items():
        print(f"{name:12} {model}")
