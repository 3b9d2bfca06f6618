"""Open the socket that the server listens at: at an address, or a Unix socket."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from jaxgen.core.errors import ConfigError, check_path
from jaxgen.server.addresses import is_any

_BACKLOG = 128
_PROBE_SECONDS = 1.0


@contextmanager
def listening(host: str | None, port: int | None, uds: Path | None) -> Iterator[socket.socket]:
    """Give a listening socket, at ``uds`` if there is one, and close it. Raises ConfigError."""
    if uds is not None:
        with _listen_unix(uds) as listener:
            yield listener
        return
    assert host is not None, "the flags have one or the other"
    assert port is not None
    with closing(listen(host, port)) as listener:
        yield listener


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; ``::`` is all addresses of the machine, those of IPv4 too. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and is_any(host) and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(f"cannot listen at --host {host} --port {port}: {error.strerror or error}") from error


@contextmanager
def _listen_unix(path: Path) -> Iterator[socket.socket]:
    """Give a listening Unix socket, whose file is removed at the end. Raises ConfigError."""
    check_path("--uds", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _make_way(path)
            listener.bind(os.fspath(path))
            listener.listen(_BACKLOG)
            status = path.lstat()
        except OSError as error:
            raise ConfigError(f"cannot listen at --uds {path}: {error.strerror or error}") from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                if os.path.samestat(path.lstat(), status):  # not another server's by now
                    path.unlink()


def _make_way(path: Path) -> None:
    """Remove a socket at ``path`` that no server listens at any more. Raises ConfigError for anything else there."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(f"--uds {path} exists and is not a socket: name a path that does not exist")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:
            pass
    raise ConfigError(f"--uds {path}: another server listens there: name another path, or stop that server")
