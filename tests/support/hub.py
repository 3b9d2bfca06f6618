"""A hub on loopback with one repository, org/model, for processes that fetch from it."""

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "1" * 40


@dataclass
class Hub:
    """Its files, and what was asked of it: paths, and the bytes that were sent of each file."""

    files: Mapping[str, bytes]
    endpoint: str = ""
    asked: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)

    def environment(self, cache: Path) -> dict[str, str]:
        """The environment of a process that takes this for the hub."""
        ours = {"HF_ENDPOINT": self.endpoint, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}
        return {**os.environ, **ours}


@contextmanager
def serving_hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """Serve a hub while the context is open."""
    hub = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, files = self.path.partition("?")[0], self.hub.files
        self.hub.asked.append(path)
        if path.startswith("/api/models/org/model/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": f"{number:040}"}
                for number, (name, content) in enumerate(files.items())
            ]
            self._answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/api/models/org/model"):
            info = {"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self._answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif (name := path.removeprefix(f"/org/model/resolve/{COMMIT}/")) in files:
            self._send_file(name)
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, name: str) -> None:
        """Send a file, or the range of it that is asked for."""
        content, number = self.hub.files[name], list(self.hub.files).index(name)
        headers = {"ETag": f'"{number:040}"', "X-Repo-Commit": COMMIT}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is not None:
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content = content[first : last + 1]
        if self.command == "GET":
            self.hub.sent[name] = self.hub.sent.get(name, 0) + len(content)
        self._answer(200 if asked is None else 206, content, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
