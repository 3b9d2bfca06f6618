"""What a run of pytest says of a fault."""

import re
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """INVALID: the fault, or its tests, are at fault themselves."""

    CAUGHT = "caught"
    NOT_CAUGHT = "NOT CAUGHT"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``detail``: the first test that fails, or why there is no verdict."""

    verdict: Verdict
    detail: str = ""


_FAILED = re.compile(r"^FAILED (\S+::\w+(?:\[.*?\])?)(?: - (.*))?$", re.MULTILINE)
_ERROR = re.compile(r"^(?:ERROR:? |E  +)(.*)$", re.MULTILINE)
_BROKEN = re.compile(
    r"(?:\w+\.)*(?:NameError|SyntaxError|IndentationError|ImportError|ModuleNotFoundError|UnavailableError.* error: )"
)
"""Programs that are broken in this way, the last one C++ that does not compile, would be noticed by anyone."""


def judge(status: int, output: str) -> Outcome:
    """``status`` and ``output`` of a pytest that prints its short summary."""
    if status == 0:
        return Outcome(Verdict.NOT_CAUGHT)
    failed = _FAILED.search(output)
    if status != 1 or failed is None:
        error = _ERROR.search(output)
        return Outcome(Verdict.INVALID, f"pytest ends with {status}: {error[1] if error else 'no test failed'}")
    if failed[2] is not None and _BROKEN.match(failed[2]):
        return Outcome(Verdict.INVALID, f"the program is broken: {failed[2]}")
    return Outcome(Verdict.CAUGHT, failed[1])
