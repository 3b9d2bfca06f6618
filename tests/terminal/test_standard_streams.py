"""A command that is started without standard streams has the null device in their place."""

import subprocess
import sys

import pytest

_SHOW = (
    "import os, sys; from jaxgen.terminal.standard_streams import open_standard_streams; open_standard_streams(); "
    "print('told', file=sys.stderr); print('said'); sys.stdin.readline(); "
    "sys.exit(7 if min(os.pipe()) > 2 and all(map(os.get_inheritable, range(3))) else 1)"
)


@pytest.mark.parametrize(
    ("closed", "out", "error"),
    [("2>&-", b"said\n", b""), (">&- 2>&- <&-", b"", b""), ("<&-", b"said\n", b"told\n"), (">&-", b"", b"told\n")],
)
def test_closed_streams_are_opened(closed: str, out: bytes, error: bytes) -> None:
    command = f'exec "$0" -S -c "$1" {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable, _SHOW], input=b"", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, out, error)
