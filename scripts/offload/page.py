"""The page of all that was measured, docs/offload-results.md, from the files in docs/results."""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from scripts.offload.plots import plot_record
from scripts.offload.results import PREFIX, Record, read_all

Row = dict[str, Any]
PAGE = f"{PREFIX}results.md"
INTRO = """# Figures of KV in host memory

Made by `python -m scripts.offload` from docs/results/offload-*.json; [offload.md](offload.md) says how it works.

- Decoding: KV of all sequences is in host memory and crosses the link in every step, layer by layer. *full* waits for
  all of a layer's KV, computes, then asks for the next layer's; *overlapped* brings the next layer's KV meanwhile;
  *fixed* brings half of the context as layer inputs X and projects them; *planned* as much as the planner says.
- A simulated link really copies every byte and holds each copy back until its bytes would have passed. The small model
  is behind links scaled so that projecting a token takes the same part of transferring its KV as for OPT-6.7B on the
  paper's A100 (312 TFLOP/s) behind the speed that is named. Prompts are computed without the link.
- The planner knows what calibration measured, in steps without overlap at other prompt lengths; never the bandwidth
  that was set. Each mode's times are medians of runs in turn, its ratios medians of runs next to each other, in
  parentheses the least and the greatest; on a machine that others use, *the fastest* runs of both say more.
- *Ideal* is the ratio of the predicted times of planned and baseline: what the schedule would give at the measured
  rates with nothing else on the machine. *Reached* is the measured gain over the ideal one.
- *Idle* is the part of the wall time in which all that had been dispatched was computed and a copy was waited for.
  Python's own time between programs is not in it.
- On a CPU the threads that copy share its cores with the layers. The rates of calibration, in which nothing overlaps,
  do not tell that: where link and device would be about equally busy, a planned step takes longer than predicted.
- *Tokens*: whether all modes' tokens are equal, with the small model also to those of the whole step with all of its
  cache on the device.

KVPR's figures (arXiv 2411.17089), on an A100 behind PCIe 4.0: latency up to -35.8 %, throughput up to +46.2 %, GPU
utilisation while decoding from 85 % to 99 %.
"""
NOTHING = "\n**Nothing has been measured yet.**\n"


def write_page(docs: Path) -> None:
    """The page, and a plot of each record beside it."""
    records = read_all(docs / "results")
    text = [INTRO] if records else [INTRO, NOTHING]
    for record in records:
        plot_record(record, docs / f"{record.stem}.png")
        text.append("\n\n".join([*_sections(record)]) + "\n")
    (docs / PAGE).write_text("\n".join(text))


def _sections(record: Record) -> Iterable[str]:
    yield f"## {record.model}, {record.device}"
    yield f"results/{record.stem}.json\n\n![all parts]({record.stem}.png)"
    for name, (title, table) in TABLES.items():
        part = record.parts.get(name)
        yield f"### {title}"
        if part is None:
            yield "Not run."
            continue
        yield (
            f"{part['date']}, jax {part['jax']}, medians of {part['repeats']}, {part['seconds']} s in all; "
            f"load average at the end {part['load_average']:.1f}."
        )
        if record.rows(name):
            yield table(record.rows(name))
        for row in part["rows"]:
            if "not_run" in row:
                yield f"Not run: {_case(row)}; {row['not_run']}."


def ideal(row: Row, base: str) -> float:
    """Planned over ``base`` in time, as predicted."""
    return float(row["predicted_seconds"]["planned"] / row["predicted_seconds"][base])


def reached(row: Row, base: str) -> float:
    """The part of the ideal gain that was measured."""
    return (1 - median(row["ratios"])) / (1 - ideal(row, base)) if ideal(row, base) < 1 else 1.0


def _case(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items() if name != "not_run")


def _latency(rows: list[Row]) -> str:
    found = [
        [
            f"{row['prompt']} + {row['generate']}",
            *(f"{row['seconds'][mode]:.2f}" for mode in ("full", "overlapped", "fixed", "planned")),
            *_against(row, "overlapped"),
            percent(row["prediction_errors"]["planned"]),
            f"{percent(row['idle_share']['overlapped'])}, {percent(row['idle_share']['planned'])}",
            _yes(row),
        ]
        for row in rows
    ]
    head = f"batch {rows[0]['batch']}, prompt + steps | full, s | overlapped, s | fixed, s | planned, s | {AGAINST}"
    best = min(median(row["ratios"]) for row in rows)
    return table(head + " | error | idle, overlapped and planned | tokens", found) + (
        f"\n\nAll at {_speed(rows[0]['link'])}. The best: {percent(best - 1, sign=True)} of overlapped's latency."
    )


def _throughput(rows: list[Row]) -> str:
    found = [
        [
            str(row["prompt"]),
            *(f"{row['tokens_per_second'][mode]:.0f}" for mode in ("overlapped", "fixed", "planned")),
            percent(1 / median(row["ratios"]) - 1, sign=True),
            percent(row["fastest"]["overlapped"] / row["fastest"]["planned"] - 1, sign=True),
            percent(1 / ideal(row, "overlapped") - 1, sign=True),
            percent(row["split"]),
            percent(row["prediction_errors"]["planned"]),
            f"{percent(row['idle_share']['overlapped'])}, {percent(row['idle_share']['planned'])}",
            _yes(row),
        ]
        for row in rows
    ]
    row = rows[0]
    head = (
        f"{row['columns']} batches of {row['batch']}, prompt | overlapped, tokens/s | fixed | planned | gain"
        " | of the fastest | ideal gain | projected | error | idle, overlapped and planned | tokens"
    )
    return (
        "Weights are in host memory too; the batches pass through a layer one after another, then through the next "
        f"one. Link: {_speed(row['link'])}.\n\n" + table(head, found)
    )


def _ablation(rows: list[Row]) -> str:
    found = [
        [
            str(row["batch"]),
            mode,
            f"{1e3 * row['fastest'][mode] / row['steps']:.1f}",
            f"{row['batch'] * row['steps'] / row['fastest'][mode]:.0f}",
            percent(row["idle_share"][mode]),
            f"{row['fastest'][mode] / row['fastest']['planned']:.2f}",
            percent(row["prediction_errors"][mode]),
        ]
        for row in rows
        for mode in row["seconds"]
    ]
    return (
        "*planner off*: half of the context projected. *scheduler off*: nothing overlaps. *runtime off*: one buffer, "
        "so that a layer's context is only asked for when the layer before it has been computed, and pageable memory "
        "(no difference on a CPU). *all off*: all KV transferred, without overlap, from pageable memory. Times of the "
        "fastest runs.\n\n"
        + table("batch | | latency, ms/token | tokens/s | device idle | time over planned's | error", found)
    )


def _links(rows: list[Row]) -> str:
    found = [
        [
            "the machine's own" if row["papers_link"] is None else f"{row['papers_link'] / 1e9:.0f}",
            _speed(row["link"]),
            percent(row["split"]),
            f"{row['seconds']['overlapped']:.2f}",
            f"{row['seconds']['planned']:.2f}",
            *_against(row, "overlapped"),
            f"{percent(row['prediction_errors']['overlapped'])}, {percent(row['prediction_errors']['planned'])}",
        ]
        for row in rows
    ]
    head = f"the paper's link, GB/s | here | projected | overlapped, s | planned, s | {AGAINST} | error, both modes"
    row = rows[0]
    text = [f"Prompt {row['prompt']}, {row['steps']} steps, batch {row['batch']}."]
    for what, stops in (("By the plan", _no_projection), ("Measured", _no_gain)):
        stopped = next((_speed(row["link"]) for row in rows if stops(row)), None)
        text.append(f"{what}, projecting " + (f"stops paying at {stopped}." if stopped else "pays on all of them."))
    return table(head, found) + "\n\n" + " ".join(text)


def _no_projection(row: Row) -> bool:
    return bool(row["split"] == 0)


def _no_gain(row: Row) -> bool:
    return median(row["ratios"]) >= 1


def _restore(rows: list[Row]) -> str:
    timed = [row for row in rows if "seconds" in row]
    found = [
        [
            row["model"],
            _speed(row["link"]),
            *(
                f"{row['seconds'][policy]:.2f} ({row['predicted_seconds'][policy]:.2f})"
                for policy in ("transfer", "recompute", "plan")
            ),
            f"{row['computed_tokens']:,}",
            f"{row['gain']:.2f}",
        ]
        for row in timed
    ]
    by_policy = {
        policy: median(row["prediction_errors"][policy] for row in timed) for policy in timed[0]["prediction_errors"]
    }
    text = [
        (
            f"Seconds to the first token of a context of {timed[0]['tokens']:,} tokens, in parentheses what was "
            "predicted. MHA: as many KV heads as heads; GQA: fewer. Layer inputs are not kept for this."
        ),
        table("model | link | copy all | compute all | as planned | tokens computed | gain over the better", found),
        "Median error of the predictions: "
        + ", ".join(f"{policy} {percent(error)}" for policy, error in by_policy.items())
        + ".",
    ]
    for row in rows:
        if "halved_errors" in row:
            errors = ", ".join(percent(error) for error in row["halved_errors"])
            text.append(
                f"{row['model']}, a link of {_speed(row['link'])} that suddenly carries half of that, unknown to the "
                f"planner: the predictions of copying all are off by {errors}, as the moving average learns."
            )
    return "\n\n".join(text)


TABLES: dict[str, tuple[str, Callable[[list[Row]], str]]] = {
    "latency": ("Latency: weights on the device, KV on the host", _latency),
    "throughput": ("Throughput: weights on the host too, in columns", _throughput),
    "ablation": ("What each part is worth", _ablation),
    "links": ("Faster and slower links", _links),
    "restore": ("A context that comes back", _restore),
}
AGAINST = "planned / overlapped | of the fastest | ideal | reached"


def _against(row: Row, base: str) -> list[str]:
    ratios = row["ratios"]
    found = f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
    fastest = row["fastest"]["planned"] / row["fastest"][base]
    share = reached(row, base)
    return [found, f"{fastest:.2f}", f"{ideal(row, base):.2f}", percent(share) if share > 0 else "none"]


def table(head: str, rows: Iterable[list[str]]) -> str:
    """In Markdown."""
    names = head.split(" | ")
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(part: float, *, sign: bool = False) -> str:
    return f"{100 * part:+.0f} %" if sign else f"{100 * part:.0f} %"


def _speed(link: float | None) -> str:
    if link is None:
        return "the machine's own link"
    return f"{link / 1e9:.1f} GB/s" if link >= 1e9 else f"{link / 1e6:.0f} MB/s"


def _yes(row: Row) -> str:
    return "equal" if row["tokens_equal"] else "differ"
