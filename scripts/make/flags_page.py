"""Write the tables of docs/configuration.md from the flags of ``jaxgen serve``: names, defaults and help texts."""

import argparse
import re
from pathlib import Path

from jaxgen.server.flags.serve_options import make_parser

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
HEAD = "| flag | default | |\n|---|---|---|\n"
TABLE = re.compile(rf"^## (\w+)\n\n{re.escape(HEAD)}(?:\|.*\n)+", re.MULTILINE)
DEFAULT = re.compile(r" \(default: ([^()]*)\)")
LINKS = {
    "--quantization": "quantization.md",
    "--tool-call-parser": "chat.md#tools",
    "--reasoning-parser": "chat.md#reasoning",
    "--structured-additional-properties": "structured.md#keys-that-a-schema-does-not-name",
    "--kv-cache-dtype": "tuning.md#the-kv-caches-dtype",
    "--kv-residency": "offload.md#streamed-decoding",
    "--kv-tier": "offload.md#a-cache-that-outlives-the-process",
    "--speculative-config": "speculation.md",
    "--tensor-parallel-size": "replicas.md#a-model-on-several-devices",
    "--kv-events-config": "replicas.md#precise-prefixes",
    "--uds": "operations.md#behind-a-proxy",
    "--root-path": "operations.md#behind-a-proxy",
    "--public-metrics": "replicas.md",
    "--service-class": "service.md",
    "--forwarded-allow-ips": "operations.md#behind-a-proxy",
    "--batch-dir": "batches.md",
    "--no-ui": "ui.md",
    "--stream-event-ids": "streams.md",
    "--max-stored-responses": "responses.md",
    "--timeout-keep-alive": "operations.md#behind-a-proxy",
    "--sse-ping-interval": "operations.md#behind-a-proxy",
}
"""Page that says more about a flag."""
_SIZES = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}
_TIMES = {"days": 86_400, "hours": 3600, "seconds": 1}
"""The units in which defaults are shown, from the largest."""


def tables() -> dict[str, str]:
    """Return the table of each group of flags by the group's name, in the order of the parser."""
    result = {}
    for group in make_parser()._action_groups:
        flags = [action for action in group._group_actions if action.option_strings[:1] != ["-h"]]
        if flags:
            result[group.title or ""] = HEAD + "".join(map(_row, flags))
    return result


def written(page: str) -> str:
    """Return the page with its tables as the flags are now. Raises KeyError for a heading that is not a group's."""
    by_heading = {"file": "options"}
    new = tables()

    def table(match: re.Match[str]) -> str:
        heading = match[1].lower()
        return f"## {match[1]}\n\n{new[by_heading.get(heading, heading)]}"

    return TABLE.sub(table, page)


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    values = str(action.metavar or " | ".join(map(str, action.choices or ())))
    text, default = DEFAULT.sub("", action.help or ""), DEFAULT.search(action.help or "")
    link = LINKS.get(action.option_strings[0])
    more = f" ([{link.partition('#')[0]}]({link}))" if link else ""
    shown = default[1] if default else _default(action)
    return f"| {_cell(f'{names} {values}'.strip())} | {_cell(shown)} | {_cell(text)}{more} |\n"


def _default(action: argparse.Action) -> str:
    if isinstance(action.default, bool):
        return "on" if isinstance(action, argparse.BooleanOptionalAction) and action.default else "off"
    if action.default is None:
        return ""
    flag, value = action.option_strings[0], action.default
    if flag.endswith("-bytes"):
        return _with_unit(value, _SIZES)
    if flag.endswith("-lifetime"):
        return _with_unit(round(value), _TIMES)
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)


def _with_unit(value: int, units: dict[str, int]) -> str:
    """Return the value in the largest unit of which it is a multiple."""
    unit = next(name for name, size in units.items() if value % size == 0)
    count = value // units[unit]
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", r"\<")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
