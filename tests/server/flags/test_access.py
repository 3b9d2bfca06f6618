"""Who may call: keys of the command line, and a server that others reach and that asks for none."""

import logging
import socket
from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import Access
from jaxgen.server.flags.access import api_keys, warn_if_open
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config


def test_white_space_around_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_keys(["  one\n", "two\t", "\ufefféè"]) == ("one", "two", "éè")
    monkeypatch.setenv("JAXGEN_API_KEY", "secret\n")
    assert server_config(make_parser().parse_args([])).access.api_keys == ("secret",)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["sec ret"], "--api-key has white space inside"),
        (["fine", "sec\nret"], "--api-key, key 2 of 2, has white space inside"),
        (["sec\u00a0ret"], "--api-key has white space inside"),
        ([" "], "--api-key is empty"),
        (["secret\udcff"], "--api-key is not valid UTF-8"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(keys: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        api_keys(keys)
    assert "ret" not in str(refused.value)


class Listener(socket.socket):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address, 8000


OPEN = Access()


@pytest.mark.parametrize(
    ("address", "access", "certificates", "warns"),
    [
        ("0.0.0.0", OPEN, False, True),
        ("::", OPEN, False, True),
        ("192.0.2.7", OPEN, False, True),
        ("fe80::1%eth0", OPEN, False, True),
        ("127.0.0.1", OPEN, False, False),
        ("127.8.0.1", OPEN, False, False),
        ("::1", OPEN, False, False),
        ("0.0.0.0", Access(api_keys=("secret",)), False, False),
        ("0.0.0.0", Access(api_key_file=Path("/keys")), False, False),
        ("0.0.0.0", OPEN, True, False),
    ],
)
def test_a_server_that_anyone_may_use_warns_once(
    address: str, access: Access, certificates: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Listener(address) as listener:
        warn_if_open(listener, access, certificates=certificates)
    assert len(caplog.records) == warns
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert "ANYONE" in record.getMessage()
        assert "--api-key-file" in record.getMessage()
