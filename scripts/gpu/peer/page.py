"""The page docs/results/peers-gpu.md from the records of runs, also when there are none yet."""

from collections.abc import Iterator

from scripts.gpu.peer.settings import COMPLETION, FULL, PROMPT, TIMES
from scripts.page.markdown import listed, paragraph, point, table
from scripts.peers.agreement import agree
from scripts.peers.load import Cell
from scripts.peers.page import GOALS, in_words, load_table
from scripts.peers.page_texts import TURNS
from scripts.peers.records import Line, Records
from scripts.peers.summary import OURS, Goal, Rounds, choices, percentile_of, shown
from scripts.peers.tables import in_ms, middle, values

TITLE = "# jaxgen and vLLM on a GPU"
NOTHING = (
    "**Not measured yet.** No machine has run both servers, so this page has no figures. [gpu.md](gpu.md) has those of "
    "jaxgen alone."
)
DRY = "**This is a dry run on a CPU.** Its figures say nothing about a GPU."
COMMAND = """
```sh
.venv/bin/python -m scripts.gpu.peer --plan
.venv/bin/python -m scripts.gpu.peer --peer-python /opt/vllm/bin/python
```
"""
AGAIN = (
    "`--peer-python` is the Python that has vLLM. `--plan` prints the seconds. Results are kept after each load, and "
    "the same command measures what is missing. `--peer-command` and `--peer-url` are for other servers."
)
LONG_GOAL = Goal("TTFT of long prompts P50", percentile_of("ttft_s", "p50"), is_time=True)


def sections(records: Records) -> Iterator[str]:
    """Yield the parts of the page: what to choose first, how it was measured last."""
    yield TITLE
    lines = records.of_kind("load")
    if not lines:
        yield paragraph(NOTHING)
        yield "## What will be measured"
        about = f"{FULL.about}, {FULL.max_model_len:,} positions. Weights are random"
        yield "\n".join(map(point, _method(about, [*TIMES], PROMPT, COMPLETION)))
    else:
        yield from _measured(records, lines)
    yield from _missing(records)
    yield "## The command"
    yield COMMAND.strip("\n")
    yield paragraph(AGAIN)


def _measured(records: Records, lines: list[Line]) -> Iterator[str]:
    loops = [line for line in lines if "requests" not in line]
    clients = sorted({line["clients"] for line in loops})
    closed = [(Cell(clients=n), _rounds([line for line in loops if line["clients"] == n])) for n in clients]
    loads = [(cell.name, rounds) for cell, rounds in closed]
    about = records.of_kind("machine")[-1]
    if about["dry_run"]:
        yield DRY
    yield paragraph(
        f"{listed(values(lines, 'peer'))} served {about['model']} on {about['gpu'] or 'a CPU'}, one after another, "
        "under the same load of the same client."
    )
    yield "## What to choose today"
    yield from in_words({"": loads}, GOALS)
    yield "\n".join(map(point, choices(loads, GOALS)))
    if closed:
        yield "## Clients in closed loops"
        yield load_table(closed)
    if long := _rounds([line for line in lines if "requests" in line]):
        yield "## Long prompts, one after another"
        yield _long(long)
    yield "## How it was measured"
    model = f"{about['model']}. Weights are {about['weights']}"
    method = _method(model, clients, loops[-1]["prompt"], loops[-1]["completion"]) if loops else ()
    yield "\n".join(map(point, (*method, *_notes(records, about))))
    yield _servers(records)


def _method(model: str, clients: list[int], prompt: int, completion: int) -> Iterator[str]:
    yield f"**Model.** {model}."
    yield (
        f"**Load.** {listed(map(str, clients))} clients, with prompts of {prompt} and completions of {completion} "
        "tokens on average. Then one client sends long prompts, one after another. Prompts are random. Decoding is "
        "greedy and ignores EOS."
    )
    yield (
        "**Figures.** Tokens/s, TTFT, gaps between tokens, and requests/s within FastGen's targets "
        "([terms](peers.md#terms-and-load)). Times are in ms."
    )


def _rounds(lines: list[Line]) -> dict[str, Rounds]:
    """Return the figures of one load by server and round."""
    found: dict[str, Rounds] = {}
    for line in lines:
        found.setdefault(line["peer"], {})[line["round"]] = line
    return found


def _long(rounds: dict[str, Rounds]) -> str:
    ours, rows = rounds.get(OURS, {}), []
    for peer, theirs in rounds.items():
        mine = list(theirs.values())
        times = [in_ms(mine, "ttft_s", q) for q in ("p50", "p95")]
        lead = shown(LONG_GOAL, ours, theirs) if peer != OURS else ""
        rows.append([peer, str(len(mine)), *times, middle(mine, "prompt_tokens_per_s"), lead])
    tokens = next(iter(next(iter(rounds.values())).values()))["prompt"]
    head = [f"{tokens:,} tokens", "rounds", "TTFT P50", "P95", "prompt tokens/s", "jaxgen's lead in TTFT P50"]
    return table(head, rows)


def _notes(records: Records, about: Line) -> Iterator[str]:
    device = "a CPU"
    if about["gpu"]:
        device = f"{about['gpu']}, {about['memory_mib']} MiB, {about['power_limit_w']} W, driver {about['driver']}"
    yield f"**Machine.** {device}; {about['cores']} cores, where the client runs too; {about['started']}."
    lines = records.of_kind("load")
    yield TURNS
    wrong = sum(line["wrong_lengths"] for line in lines)
    busiest = max(line.get("client_cpu_share", 0.0) for line in lines)
    yield f"**Checks.** Completions of a wrong length: {wrong}. The client used {busiest:.2f} of a core at most."
    answers = {line["peer"]: line["answers"] for line in records.of_kind("answers")}
    if ours := answers.pop(OURS, None):
        for peer, theirs in answers.items():
            first, every = agree(ours, theirs)
            yield (
                f"**Same model.** Of {len(ours)} greedy completions {first} agree with {peer}'s in the first token, "
                f"{every} in all {len(ours[0])}."
            )


def _servers(records: Records) -> str:
    starts = [line for line in records.of_kind("start") if not line.get("error")]
    rows = []
    for peer in values(starts, "peer"):
        mine = [line for line in starts if line["peer"] == peer]
        versions = ", ".join(f"{name} {version}" for name, version in mine[-1]["versions"].items())
        seconds = [line["seconds"] for line in mine if "seconds" in line]
        ready = ", ".join(f"{one:.0f}" for one in seconds) or "-"
        rows.append([peer, versions, mine[-1]["attempt"], f"`{' '.join(mine[-1]['command'])}`", ready])
    return table(["", "versions", "attempt", "command", "ready after, s, in each round"], rows)


def _missing(records: Records) -> Iterator[str]:
    """Say what failed, or was not reached, and was not measured later."""
    failed = [
        f"{line['peer']}, round {line['round']}, start ({line['attempt']}): `{_ends(line['error'])}`"
        for line in records.of_kind("start")
        if line.get("error")
    ]
    done = {(line["peer"], line["round"]) for line in records.of_kind("turn", complete=True)}
    failed += [
        f"{line['peer']}, round {line['round']}: {_ends(line['why'])}"
        for line in records.of_kind("missing")
        if (line["peer"], line["round"]) not in done
    ]
    if failed:
        yield "Failed or not reached:"
        yield "\n".join(f"- {one}" for one in failed)


def _ends(text: str) -> str:
    """Return the first and the last line of a message."""
    lines = text.splitlines() or [""]
    return lines[0][:200] if len(lines) == 1 else f"{lines[0][:200]} ... {lines[-1][:200]}"
