"""Parse and validate the lines of a batch's input file, and write the lines of its results."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from json import JSONEncoder
from os import urandom
from typing import Any
from uuid import uuid4

import numpy as np
from pydantic import ValidationError

from jaxgen.server.api.body import parse_json_object
from jaxgen.server.errors import ApiError
from jaxgen.server.schema.base import Body

MOST_FAULTS = 100
"""Most faults reported for one file."""
MOST_CUSTOM_ID = 512
"""Most characters of a custom_id."""
_encode = JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Line(Body):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a batch's input file; ``line`` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "line": self.line, "message": self.message, "param": self.param}


def faults_json(faults: Iterable[Fault]) -> dict[str, Any]:
    """Return faults as the field ``errors`` of a batch."""
    return {"object": "list", "data": [fault.as_json() for fault in faults]}


def parse_line(raw: bytes) -> Line:
    """Parse a batch line. Raises ApiError 400 where it is invalid."""
    data = parse_json_object(raw)
    try:
        return Line.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = ".".join(str(step)[:100] for step in fault["loc"])
        raise ApiError(400, f"{name}: {fault['msg']}.", param=name, code="invalid_line") from error


class Validator:
    """Validates a file's lines one after the other; ``faults`` lists the faults found.

    Values of custom_id are compared by 64-bit keyed hashes, 8 bytes of memory for each. Among a million of them, two
    different ones are taken for equal with a probability of 3e-8.
    """

    def __init__(self, endpoint: str, most_lines: int, longest: int) -> None:
        """``longest``: most bytes of a line."""
        self.faults: list[Fault] = []
        self.total = 0
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._longest = longest
        self._names = array("Q")
        self._numbers = array("Q")
        self._key = urandom(16)

    @property
    def gave_up(self) -> bool:
        """Whether the file has too many faults to report, or too many lines."""
        return len(self.faults) >= MOST_FAULTS or self.total > self._most_lines

    def see_all(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Validate lines with their numbers, from 0."""
        for number, raw in lines:
            if not self.gave_up:
                self._see(number, raw)

    def _see(self, number: int, raw: bytes) -> None:
        self.total += 1
        if self.total > self._most_lines:
            message = f"The file has more than {self._most_lines} lines, which is the limit of this server."
            self.faults.append(Fault("too_many_requests", message))
            return
        if len(raw.rstrip(b"\r\n")) > self._longest:
            message = f"The line is longer than {self._longest} bytes, which is the limit of this server."
            self._fault(number, "line_too_long", message)
            return
        try:
            line = parse_line(raw)
        except ApiError as error:
            self._fault(number, error.code or "invalid_json_line", error.message, error.param)
            return
        if not 0 < len(line.custom_id) <= MOST_CUSTOM_ID:
            self._fault(number, "invalid_custom_id", f"custom_id must have 1 to {MOST_CUSTOM_ID} characters.")
        if line.method != "POST":
            self._fault(number, "invalid_method", f"method must be POST, not {line.method[:20]!r}.", "method")
        if line.url != self._endpoint:
            message = f"url must be that of the batch, {self._endpoint}, not {line.url[:100]!r}."
            self._fault(number, "mismatched_url", message, "url")
        name = blake2b(line.custom_id.encode(), digest_size=8, key=self._key).digest()
        self._names.append(int.from_bytes(name, "little"))
        self._numbers.append(number)

    def finish(self) -> None:
        """Find faults of the whole file, after its last line: no lines, and duplicates of custom_id."""
        if self.total == 0:
            self.faults.append(Fault("empty_file", "The file has no lines."))
        names = np.frombuffer(self._names, np.uint64)
        order = np.argsort(names, kind="stable")
        again = order[1:][names[order[1:]] == names[order[:-1]]]
        for index in sorted(again)[:MOST_FAULTS]:
            self._fault(self._numbers[index], "duplicate_custom_id", "An earlier line has this custom_id.", "custom_id")

    def _fault(self, number: int, code: str, message: str, param: str | None = None) -> None:
        self.faults.append(Fault(code, message, number + 1, param))


def answered(custom_id: str | None, status: int, body: dict[str, Any]) -> str:
    """Return the result line with an endpoint's response. ``custom_id`` None: the line has none that can be read."""
    response = {"status_code": status, "request_id": f"req-{uuid4().hex}", "body": body}
    return _result(custom_id, response, None)


def not_answered(raw: bytes, code: str, message: str) -> str:
    """Return the result line of a request that was abandoned before it had a response."""
    try:
        custom_id = parse_line(raw).custom_id
    except ApiError:  # it was valid once: the file may have been changed
        custom_id = None
    return _result(custom_id, None, {"code": code, "message": message})


def _result(custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None) -> str:
    return _encode({"id": f"batch_req_{uuid4().hex}", "custom_id": custom_id, "response": response, "error": error})
