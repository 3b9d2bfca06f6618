"""Compare the CPU time of jaxgen and llama.cpp for one client, of the same random GGUF file, on one core each.

    .venv/bin/python -m scripts.measure.same_file docs/results/same-file.jsonl --shape qwen3.5-0.8b --types Q8_0,Q4_0
    .venv/bin/python -m scripts.measure.same_file docs/results/same-file.jsonl --table

Other work on a machine changes the CPU time of a thread by what it takes of caches and of memory's rate, but its wall
time by much more. Servers have one thread, since threads that wait for each other count the time in which they wait.
Both servers are up, and take turns. A round has a prompt with a completion of one token, and one with more: the
difference is that of decodes. ``scripts.peers`` compares times, on a machine without other work.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scripts.page.markdown import table
from scripts.peers.agreement import agree, answers
from scripts.peers.cli import PEERS
from scripts.peers.load import VOCAB_SIZE
from scripts.peers.peer import Peer, Site
from scripts.peers.process import RunningServer, free_port, running
from scripts.peers.shapes import FORMATS, SHAPES

PROMPT, DECODES = 256, 32
PATIENCE = 600.0
OURS, THEIRS = "jaxgen", "llama.cpp"
Row = dict[str, Any]


def spent(server: RunningServer, prompt: list[int], tokens: int) -> float:
    """Return the CPU seconds of one completion."""
    before = server.cpu_seconds()
    server.complete({"prompt": prompt, "max_tokens": tokens}, PATIENCE)
    return server.cpu_seconds() - before


def round_of(servers: dict[str, RunningServer], seed: int) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of a token of a prompt, and of a decode, of each server; who is first alternates."""
    rng, result = np.random.default_rng(seed), {}
    prompts = rng.integers(3, VOCAB_SIZE, (2, PROMPT)).tolist()
    for name in sorted(servers, reverse=bool(seed % 2)):
        alone, more = (spent(servers[name], prompt, n) for prompt, n in zip(prompts, (1, 1 + DECODES), strict=True))
        result[name] = 1e3 * alone / PROMPT, 1e3 * (more - alone) / DECODES
    return result


def measure(site: Site, kind: str, rounds: int) -> Row:
    """Return what is measured of a file."""
    wanted = FORMATS[kind]
    with ExitStack() as stack:
        servers = {}
        for name in (OURS, THEIRS):
            peer: Peer = PEERS[name]
            peer.prepare(site, wanted)
            port, log = free_port(), site.log(f"same-file-{name}-{site.shape}-{kind}")
            servers[name] = stack.enter_context(running(peer.launch(site, wanted, port), port, site.cores, log))
        agreed = {name: answers(PEERS[name].tokens, server, PATIENCE) for name, server in servers.items()}
        found = [round_of(servers, seed) for seed in range(rounds)]
    return {
        "shape": site.shape,
        "type": kind,
        "versions": {name: PEERS[name].versions(site) for name in servers},
        "first_tokens_equal": agree(*agreed.values())[0],
        "prompts": len(agreed[OURS]),
        "ms": {name: [one[name] for one in found] for name in servers},
    }


def lines(rows: list[Row]) -> Iterator[list[str]]:
    """Yield the medians of each file: milliseconds of both, and how many times ours llama.cpp's is."""
    for row in rows:
        cells = [row["shape"], row["type"]]
        for place in (0, 1):
            ours, theirs = ([one[place] for one in row["ms"][name]] for name in (OURS, THEIRS))
            ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
            spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            cells.append(f"{median(ours):.2f}, {median(theirs):.2f}: {spread}")
        yield [*cells, f"{row['first_tokens_equal']} of {row['prompts']}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work_dir = Path(tempfile.gettempdir(), "peers-work")
    parser.add_argument("file", type=Path, help="JSON lines, to which each file's are added")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--types", default="Q8_0", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work-dir", type=Path, default=work_dir, help="as of scripts.peers")
    parser.add_argument("--table", action="store_true", help="show the table of what the file has")
    args = parser.parse_args()
    for kind in [] if args.table else args.types.split(","):
        row = measure(Site(args.work_dir.resolve(), 1, args.shape), kind, args.rounds)
        with args.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
    rows = [json.loads(line) for line in args.file.read_text().splitlines()]
    head = ["shape", "type", "ms of a prompt's token", "ms of a decode", "first tokens equal"]
    print(table(head, list(lines(rows))))


if __name__ == "__main__":
    main()
