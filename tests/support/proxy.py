"""A small proxy in front of a server: it may strip a prefix, and cuts connections when told to."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

NOT_PASSED_ON = {"connection", "transfer-encoding", "keep-alive"}


class Proxy(ThreadingHTTPServer):
    """Passes requests on to ``target`` and streams what it answers."""

    daemon_threads = True

    def __init__(self, target: str, strip: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.strip = strip
        self.open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        """Without a slash at its end and without the prefix."""

    def cut(self) -> None:
        """Reset all connections, as when a cable is pulled; new ones are taken."""
        for one in list(self.open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """A browser that has gone is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        """Answer with what the server says to the path without the prefix; another path is not its."""
        if not self.path.startswith(self.server.strip):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        above = http.client.HTTPConnection(self.server.target)
        try:
            path = self.path.removeprefix(self.server.strip) or "/"
            above.request(self.command, path, body, dict(self.headers.items()))
            self._answer(above.getresponse())
        finally:
            above.close()

    do_GET = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815  (http.server's names)

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in NOT_PASSED_ON:
                self.send_header(name, value)
        chunked = answer.getheader("content-length") is None and answer.status not in (204, 304)
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while part := answer.read1(2**16):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def proxy(target: str, strip: str = "") -> Iterator[Proxy]:
    """A proxy in front of the server at ``target``, in a thread."""
    found = Proxy(target, strip)
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), name="proxy")
    thread.start()
    try:
        yield found
    finally:
        found.cut()
        found.shutdown()
        thread.join()
        found.server_close()
