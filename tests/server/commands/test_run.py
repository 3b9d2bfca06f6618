"""How a server ends: what callers are told whose requests a drain does not wait for, and what the log says."""

import asyncio
import io
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPResponse
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import httpx2
import pytest

from jaxgen.client import EngineStatus
from jaxgen.core.model_info import ChatFormat, EmbeddingFormat, ModelInfo, Pooling
from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.commands.listener import listen
from jaxgen.server.commands.run import Ending, Server, run
from jaxgen.server.config import ServerConfig
from jaxgen.server.connections.config import ConnectionConfig
from jaxgen.server.limits import Batches, Connections
from tests.support.batch_client import jsonl, line, lines_of, start, upload, wait
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import TOKENIZER, body, client_of, error_of, stream_chunks

LONG = 600.0
"""Seconds that no test waits."""
CHAT = ChatFormat("{% for m in messages %}{{ m.content }}{% endfor %}", {})
INFO = ModelInfo(MODEL, 128, 400, chat=CHAT, embedding=EmbeddingFormat(4, Pooling.LAST))
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": body(n=2, max_tokens=100),
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"model": MODEL, "input": "Hi"},
    "/v1/messages": {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/embeddings": {"model": MODEL, "input": ["Hi", "there"]},
}


@dataclass
class StoppableEngine(FakeEngine):
    """``hangs``: its last step never ends. ``waits``: how long it was waited for."""

    hangs: bool = False
    waits: list[float | None] = field(default_factory=list)

    def stop(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return not self.hangs and self.state.state != "starting"


def stuck_after(count: int, **fields: Any) -> StoppableEngine:
    async def pace(request: Request, index: int) -> None:
        if index == count:
            await asyncio.Event().wait()

    return StoppableEngine(TOKENIZER, pace=pace, model=INFO, **fields)


@dataclass
class Running:
    url: str
    app: Any
    server: Server
    tell: Callable[[], None]
    """Send it SIGTERM."""
    ended: Future[Ending]

    def until_under_way(self, count: int) -> None:
        until(lambda: self.app.state.lifecycle.num_requests == count)

    def until_full(self) -> None:
        """Wait until a connection takes no more, because its caller does not read."""
        until(lambda: any(_unsent(one) > 2**15 for one in tuple(self.server.server_state.connections)))


def _unsent(connection: Any) -> int:
    return int(connection.num_unsent)


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 60
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


@contextmanager
def running(engine: StoppableEngine, config: ServerConfig | None = None, *, timeout: float = LONG) -> Iterator[Running]:
    """A server in a thread; ``timeout``: the shutdown timeout."""
    config = config or ServerConfig()
    app, listener = create_app(engine, config), listen("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)  # so that connections are full soon
    loops: Future[tuple[asyncio.AbstractEventLoop, asyncio.Queue[int]]] = Future()
    ended: Future[Ending] = Future()
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "log_config": None}
    uvicorns = ConnectionConfig(app, replace(config, connections=Connections(timeout_keep_alive_s=LONG)), **quiet)
    server = Server(uvicorns)

    async def main() -> Ending:
        stops: asyncio.Queue[int] = asyncio.Queue()
        loops.set_result((asyncio.get_running_loop(), stops))
        return await run(engine, server, app.state.lifecycle, listener, timeout, stops)

    thread = threading.Thread(
        target=lambda: ended.set_result(asyncio.run(main(), loop_factory=uvicorns.get_loop_factory()))
    )
    thread.start()
    loop, stops = loops.result(60)

    def tell() -> None:
        loop.call_soon_threadsafe(stops.put_nowait, signal.SIGTERM)

    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", app, server, tell, ended)
    finally:
        while thread.is_alive():
            try:
                for _ in range(3):
                    tell()
            except RuntimeError:  # it has just ended
                pass
            thread.join(1)


def asking(url: str, path: str, **fields: Any) -> "Future[httpx2.Response]":
    """The answer to a request that is sent in a thread."""
    answer: Future[httpx2.Response] = Future()

    def ask() -> None:
        try:
            answer.set_result(httpx2.post(url + path, json=ASKED[path] | fields, timeout=60))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask).start()
    return answer


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of the requests' lines. There are no others but what says that it drains, and no tracebacks."""
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO] == []
    return [record.fields for record in caplog.records if hasattr(record, "fields")]


@pytest.mark.parametrize("how", ["at the timeout", "at a second signal"])
@pytest.mark.parametrize("path", ASKED)
def test_whole_answers_that_are_cut_off_are_errors(path: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    engine = stuck_after(0)
    with running(engine, timeout=0.1 if how == "at the timeout" else LONG) as server:
        answering = asking(server.url, path)
        until(lambda: bool(engine.open))
        server.tell()
        if how == "at a second signal":
            server.tell()
        answer = answering.result(60)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        if path == "/v1/messages":
            error = answer.json()["error"]
            assert (error["details"]["error_code"], error["type"]) == ("shutting_down", "api_error")
        else:
            error = error_of(answer.json())
            assert (error["code"], error["type"]) == ("shutting_down", "server_error")
        ending = server.ended.result(60)
    assert ending.code == 0
    assert ending.message.startswith("ended by SIGTERM: the drain took ")
    assert ending.message.endswith(" s, 1 request was cut off")
    (said,) = lines(caplog)
    assert (said["status"], said["error"]) == (503, "shutting_down")
    assert engine.open == set()


@pytest.mark.parametrize("path", list(ASKED)[:3])
def test_streams_that_are_cut_off_end_with_an_error_event(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    engine = stuck_after(3)
    with running(engine) as server:
        with httpx2.stream("POST", server.url + path, json=ASKED[path] | {"stream": True}, timeout=60) as answer:
            assert answer.status_code == 200
            pieces = answer.iter_text()
            begun = next(pieces)
            server.tell()
            server.tell()
            text = begun + "".join(pieces)
        assert server.ended.result(60).message.endswith(" 1 request was cut off")
    events = {"/v1/responses": "response.failed", "/v1/messages": "error"}
    if path in events:
        last = text.split("\n\n")[-2]
        assert last.startswith(f"event: {events[path]}\n")
        failed = json.loads(last.split("data: ")[1])
        assert "shutting down" in failed.get("response", failed)["error"]["message"]
    else:
        assert stream_chunks(text)[-1]["error"]["code"] == "shutting_down"
    (said,) = lines(caplog)
    assert said["status"] == 200
    assert said["error"] == "shutting_down"


def test_requests_that_end_in_time_are_not_cut_off() -> None:
    gate = threading.Event()

    async def pace(request: Request, index: int) -> None:
        while index == 1 and not gate.is_set():
            await asyncio.sleep(0.01)

    engine = StoppableEngine(TOKENIZER, pace=pace, model=INFO)
    with running(engine) as server:
        answering = asking(server.url, "/v1/completions")
        until(lambda: bool(engine.open))
        server.tell()
        until(lambda: httpx2.get(server.url + "/ready").status_code == 503)
        refused = httpx2.post(server.url + "/v1/completions", json=body())
        assert error_of(refused.json())["code"] == "draining"
        gate.set()
        assert answering.result(60).status_code == 200
        assert server.ended.result(60).message.endswith(", no requests were cut off")
    (left,) = engine.waits
    assert left is not None
    assert 0 < left <= LONG + 5


def connect(url: str, text: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    made.settimeout(60)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
    made.connect((host, int(port)))
    made.sendall(text)
    return made


def test_idle_connections_are_closed_when_a_drain_begins() -> None:
    engine = stuck_after(0)
    with running(engine) as server:
        asking(server.url, "/v1/completions").add_done_callback(lambda _: None)
        until(lambda: bool(engine.open))
        with connect(server.url, b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n") as idle:
            received = b""
            while not received.endswith(b"}"):
                received += idle.recv(65536)
            server.tell()
            assert idle.recv(65536) == b""
        assert not server.ended.done()


def test_a_reader_who_reads_nothing_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the stream's error nor its end can be sent."""
    caplog.set_level(logging.INFO, "jaxgen")
    engine = StoppableEngine(TOKENIZER, model=INFO, reply=lambda request: [7] * 10**6)
    engine.model = ModelInfo(MODEL, 10**6, 400)
    asked = json.dumps(body(stream=True, max_tokens=900_000, logprobs=5)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(asked)}\r\n\r\n"
    with running(engine) as server, connect(server.url, head.encode() + asked):
        server.until_full()
        server.tell()
        server.tell()
        assert server.ended.result(60).message.endswith(" 1 request was cut off")
    assert len(lines(caplog)) == 1


def body_of(received: bytes) -> bytes:
    """The body of a whole HTTP response, also of one in chunks."""

    class Read:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(received)

    response = HTTPResponse(Read())  # type: ignore[arg-type]
    response.begin()
    return response.read()


def test_a_slow_reader_gets_all_of_an_answer_that_has_ended() -> None:
    """Its request is over, but much of the answer is still to be sent when the drain ends."""
    engine = StoppableEngine(TOKENIZER, model=ModelInfo(MODEL, 40_000, 400))
    asked = json.dumps(body(max_tokens=4_000, logprobs=5, prompt=[100])).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(asked)}\r\n\r\n"
    with running(engine) as server, connect(server.url, head.encode() + asked) as slow:
        server.until_full()
        server.tell()
        sleep(1.5)  # longer than the last bytes get where nobody waits for them
        received = b""
        while piece := slow.recv(2**20):
            received += piece
        ending = server.ended.result(60)
    answer = json.loads(body_of(received))
    assert answer["usage"]["completion_tokens"] == 4_000
    assert ending.code == 0


def test_an_upload_that_does_not_end_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 5000\r\n\r\n--b\r\n"
    )
    config = ServerConfig(batches=Batches(batch_dir=tmp_path))
    with running(stuck_after(0), config) as server, connect(server.url, head) as sending:
        server.until_under_way(1)
        server.tell()
        server.tell()
        received = b""
        while piece := sending.recv(65536):  # the head may come before the body
            received += piece
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b"shutting_down" in received
        assert server.ended.result(60).message.endswith(" 1 request was cut off")
    (said,) = lines(caplog)
    assert (said["path"], said["error"]) == ("/v1/files", "shutting_down")


def test_a_download_that_is_cut_off_ends_without_a_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    with running(stuck_after(0), ServerConfig(batches=Batches(batch_dir=tmp_path))) as server:
        form: dict[str, Any] = {"files": {"file": ("f", b"x" * 5_000_000)}, "data": {"purpose": "batch"}}
        file_id = httpx2.post(server.url + "/v1/files", timeout=60, **form).json()["id"]
        with connect(server.url, f"GET /v1/files/{file_id}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()):
            server.until_full()
            server.tell()
            server.tell()
            assert server.ended.result(60).message.endswith(" 1 request was cut off")
    assert lines(caplog)[1]["error"] == "shutting_down"


def test_a_batch_goes_on_at_the_next_start(tmp_path: Path) -> None:
    """Its line is neither waited for nor answered with an error."""
    config, engine = ServerConfig(batches=Batches(batch_dir=tmp_path)), stuck_after(0)
    with running(engine, config) as server:
        with httpx2.Client(base_url=server.url) as client:
            batch = start(cast("Any", client), upload(cast("Any", client), jsonl(line("a"))))
        until(lambda: bool(engine.open))
        server.tell()
        assert server.ended.result(60).message.endswith(", no requests were cut off")
    with client_of(StoppableEngine(TOKENIZER, model=INFO), config) as again:
        ended = wait(again, batch.id)
        assert ended.status == "completed"
        assert [one["response"]["status_code"] for one in lines_of(again, ended.output_file_id)] == [200]


def test_an_engine_that_hangs_does_not_hold_the_server(caplog: pytest.LogCaptureFixture) -> None:
    engine = stuck_after(0, hangs=True)
    with running(engine, timeout=0.1) as server:
        answering = asking(server.url, "/v1/completions")
        until(lambda: bool(engine.open))
        server.tell()
        assert answering.result(60).status_code == 503
        ending = server.ended.result(60)
    assert (ending.code, ending.engine_ended) == (1, False)
    assert ending.message.endswith(" 1 request was cut off, and the engine hangs")
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "Thread 0x" in said
    assert "test_run.py" in said


def test_an_engine_that_starts_is_not_waited_for() -> None:
    engine = stuck_after(0, state=EngineStatus("starting"))
    with running(engine) as server:
        until(lambda: httpx2.get(server.url + "/ready").status_code == 503)
        server.tell()
        ending = server.ended.result(60)
    assert ending == Ending(0, "ended by SIGTERM while starting", engine_ended=False)
    assert engine.waits == [0.0]


@pytest.mark.parametrize(("was_ready", "code"), [(True, 1), (False, 2)])
def test_an_engine_that_dies_ends_the_server(was_ready: bool, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    engine = stuck_after(0, state=EngineStatus("ready" if was_ready else "starting"))
    said = ""
    with running(engine) as server:
        while was_ready and "is ready at" not in said:
            said += capsys.readouterr().out
            sleep(0.01)
        engine.state = EngineStatus("dead", "it broke")
        assert server.ended.result(60) == Ending(code, "it broke")
