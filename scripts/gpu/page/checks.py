"""Format the outcomes of checks, and the rows without a result, as sections of docs/results/gpu.md."""

from collections.abc import Iterable
from textwrap import wrap

from scripts.gpu.page.cells import NOT_RUN, Column, Result, Row, of, quoted, state
from scripts.gpu.result.report import State
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import FULL
from scripts.page.markdown import paragraphs


def verdict(row: Row) -> str:
    """Return what a check found; a row whose process or device was lost has failed."""
    return state(row) or (f"failed: {row['failure']}" if row["failure"] else "passed")


def smoke(result: Result) -> str:
    """Return the outcome of each kernel and small step, and the bad configurations."""
    shown = []
    for plan in rows_of(FULL):
        row = result.row(plan.name)
        skipped = plan.instead_of and row.get("state") in (None, State.NOT_NEEDED, State.NOT_REACHED)
        if plan.part == "smoke" and not skipped:
            shown.append(plan.name)
    columns: list[Column] = [("kernels", of("kernels")), ("outcome", verdict), ("largest error", of("largest_error"))]
    bad = "\n".join(f"- {one}" for one in result.about.get("bad_configurations", []))
    return paragraphs(result.table("row", quoted(shown), columns), bad)


def checks(result: Result) -> str:
    """Return how many checks held and failed, and the failures."""
    verified = f"server_{FULL.server.name}_verify"
    rows = result.rows("smoke_", "check_", "parity_", "repeatability_", "sanitizer_", verified)
    asked = [row for row in rows if row["state"] != State.NOT_NEEDED]
    verdicts = [verdict(row) for row in asked]
    held, failed = verdicts.count("passed"), sum(one.startswith("failed") for one in verdicts)
    all_, other = f"Of {len(asked)} checks of kernels, parity and repeatability", len(asked) - held - failed
    text = f"{all_} {held} held, {failed} failed, {other} have no result."
    failures = "\n".join(f"- failed: {one}" for one in result.about.get("failures", []))
    return paragraphs(text, failures) if asked else f"Kernels, parity and repeatability: {NOT_RUN}."


def without_result(result: Result) -> str:
    """Return the rows that did not run, by the reason, without rows that this script has no more."""
    names: dict[str, list[str]] = {}
    known = {row.name for row in rows_of(FULL)}
    for row in result.about.get("rows", []):
        if row["state"] not in (State.RAN, State.NOT_NEEDED) and row["name"] in known:
            names.setdefault(f"{row['state']}: {row['why'].splitlines()[0]}", []).append(row["name"])
    return "\n\n".join(f"{why}:\n\n{listed(of)}" for why, of in names.items()) or "None."


def listed(names: Iterable[str]) -> str:
    """Return names of rows as a block of text: they may be a hundred."""
    return "\n".join(["```text", *wrap(" ".join(names), 120), "```"])
