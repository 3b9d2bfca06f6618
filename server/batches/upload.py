"""Read the form of an upload as it arrives: fields are checked at once, the file goes to its place on the disk."""

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from jaxgen.server.batches.disk import private
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.schema.base import Body

WRITE_BYTES = 2**20
"""Bytes that are gathered for one write."""
MOST_NAME = 255
"""Most characters of a file's name that are kept."""
_TURNS = frozenset(map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
"""Characters that turn the direction of what follows."""
_ENCODED_NAME = re.compile(rb"(?i);\s*filename\*\s*=\s*[\w-]*'[\w-]*'([^;\s\"]+)")
"""Finds a name that is not ASCII as RFC 5987 has it, which earlier clients send in place of another."""
ENVELOPE = 2**16
"""Most bytes of a form without the file in it."""


class FileForm(Body):
    """The form of an upload."""

    purpose: Literal["batch"]
    file: bytes


class Upload:
    """A form whose file is written to ``path``. ``feed`` takes its bytes as they come; ``write`` and ``close`` are for
    a thread."""

    def __init__(self, content_type: str, path: Path, most_bytes: int) -> None:
        """``most_bytes``: of the file. Raises ApiError 400 for a content type other than multipart/form-data."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise _no_file()
        self.filename = "file"
        self.size = 0
        self.unwritten = bytearray()
        self._path = path
        self._most_bytes = most_bytes
        self._left = most_bytes + ENVELOPE
        self._file: BinaryIO | None = None
        self._header = [b"", b""]
        self._disposition = b""
        self._field = ""
        self._purpose = b""
        self._complete: set[str] = set()
        with _form_errors():
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._take_header_name,
                    "on_header_value": self._take_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._take_data,
                    "on_part_end": self._end_part,
                },
            )

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the form. Raises ApiError: 400 that names the field, 413 for a file too long."""
        self._left -= len(chunk)
        if self._left < 0:
            raise too_long(self._most_bytes)
        with _form_errors():
            self._parser.write(chunk)

    def check_complete(self) -> None:
        """Raise ApiError 400 for what is missing at the form's end."""
        if "purpose" not in self._complete:
            raise bad_request("purpose is missing: send 'batch'.", "purpose")
        if "file" not in self._complete:
            raise _no_file()

    def write(self) -> None:
        """Write what has come of the file. Raises OSError."""
        if self._file is None:
            self._file = open(self._path, "xb", opener=private)  # noqa: SIM115  (close() closes it)
        self._file.write(self.unwritten)
        self.unwritten.clear()

    def finish(self) -> None:
        """Write the rest of the file, and wait until it is on the disk. Raises OSError."""
        self.write()
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Close the file, which may be incomplete."""
        if self._file is not None:
            with suppress(OSError):  # the rest of it, for which the disk may have no room
                self._file.close()

    def _begin_part(self) -> None:
        self._disposition = b""

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = value
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name, filename = _text(options.get(b"name", b"")), options.get(b"filename")
        if filename is None and (encoded := _ENCODED_NAME.search(self._disposition)):
            filename = unquote_to_bytes(encoded[1])
        if not name:
            raise bad_request("Each part of the form needs a name: purpose or file.")
        if name not in FileForm.model_fields:
            raise bad_request(f"Unknown field {name[:100]!r}.", name[:100])
        if name == "purpose" and filename is not None:
            raise _bad_purpose()
        if name == "file" and filename is None:
            raise _no_file()
        if name == "file" and name in self._complete:
            raise bad_request("file: there are several; send one.", "file")
        if filename:
            self.filename = _last_part(_text(filename))[:MOST_NAME] or self.filename
        self._field, self._purpose = name, b""

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._field == "purpose":
            self._purpose += data[start:end]
            if not b"batch".startswith(self._purpose):
                raise _bad_purpose()
            return
        self.size += end - start
        if self.size > self._most_bytes:
            raise too_long(self._most_bytes)
        self.unwritten += data[start:end]

    def _end_part(self) -> None:
        if self._field == "purpose" and self._purpose != b"batch":
            raise _bad_purpose()
        self._complete.add(self._field)


@contextmanager
def _form_errors() -> Iterator[None]:
    """Turn the parser's errors into ApiError 400."""
    try:
        yield
    except FormParserError as error:
        raise bad_request(f"The body is not a valid form (multipart/form-data): {error}.") from error


def too_long(most_bytes: int) -> ApiError:
    return ApiError(413, f"The file is longer than {most_bytes} bytes.", param="file")


def _no_file() -> ApiError:
    return bad_request("file is missing: send a form (multipart/form-data) with a file in it.", "file")


def _bad_purpose() -> ApiError:
    return bad_request("purpose must be 'batch'.", "purpose")


def _last_part(name: str) -> str:
    """Return a file's name without the folders before it; empty: only folders are named. Raises ApiError 400 for
    characters by which a terminal or a file manager shows another name."""
    for char in name:
        if unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in _TURNS:
            raise bad_request(f"file: its name has U+{ord(char):04X}: send a name without control characters.", "file")
    last = re.split(r"[/\\]", name)[-1].strip()
    return "" if last in (".", "..") else last


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")
