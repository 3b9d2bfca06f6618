"""The benchmark command: its flags, keys and plots, and servers that are not ours."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.routing import Route

from jaxgen.core.request import Request
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import Access, ServerConfig
from tests.support.benchmark_runs import SMALL, last_run, main, measure, served
from tests.support.fakes import says
from tests.support.live_server import serve
from tests.support.server_app import TOKENIZER, fake_engine


@pytest.mark.parametrize(("usage", "counted"), [("final", "final usage"), ("none", "chunks")])
def test_servers_that_say_less(tmp_path: Path, usage: str, counted: str) -> None:
    flags = ("--clients", "1", "--requests", "4", "--warmup", "0", "--usage", usage)
    engine = fake_engine(reply=says(TOKENIZER.encode("x") * 16))
    point = measure(engine, tmp_path / "o", *flags)["points"][0]
    assert point["tokens_counted_by"] == {counted: 4}
    tokens = sum(request.params.max_tokens for request in engine.requests)
    # The server may put several tokens into one chunk, and then only usage knows.
    assert point["output_tokens"] == tokens if usage == "final" else 4 <= point["output_tokens"] <= tokens


def test_requests_name_the_class_that_is_asked_for(tmp_path: Path) -> None:
    engine = fake_engine()
    classes = (ServiceClass(name="priority", first_token_seconds=9.0),)
    with served(engine, ServerConfig(service_classes=classes)) as url:
        flags = ["--base-url", url, "--output", str(tmp_path / "o"), "--clients", "1", "--requests", "2", *SMALL]
        assert main([*flags, "--service-tier", "priority"]) == 0
        assert main(flags) == 0
    assert [request.service.name for request in engine.requests] == ["priority"] * 3 + ["default"] * 3
    assert last_run(tmp_path / "o")["settings"]["service_tier"] is None


def test_plot(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    flags = ("--clients", "1,2", "--rates", "50", "--requests", "4", "--plot", str(plot))
    measure(fake_engine(), tmp_path / "o", *flags)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_plot_of_a_run_that_failed(tmp_path: Path) -> None:
    async def fail(request: Request, index: int) -> None:
        raise RuntimeError("told to fail")

    plot = tmp_path / "plot.png"
    flags = ("--clients", "1", "--requests", "2", "--plot", str(plot))
    run = measure(fake_engine(pace=fail), tmp_path / "o", *flags, rc=1)
    assert run["points"][0]["warmup_not_completed"] == 1
    assert plot.exists()


def test_api_key_is_sent_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXGEN_API_KEY", "secret-key")
    output = tmp_path / "o"
    with served(fake_engine(), ServerConfig(access=Access(api_keys=("secret-key",)))) as url:
        flags = ["--base-url", url, "--output", str(output), "--clients", "1", "--requests", "1"]
        assert main([*flags, *SMALL]) == 0
        monkeypatch.delenv("JAXGEN_API_KEY")
        assert main([*flags, *SMALL]) == 2
    assert "secret" not in output.read_text()


def other_server(parts: list[bytes]) -> Starlette:
    """Some other server: no /v1/models, and an answer in the given pieces."""

    async def pieces() -> Any:
        for part in parts:
            yield part
            await asyncio.sleep(0)

    async def answer(request: HttpRequest) -> StreamingResponse:
        return StreamingResponse(pieces(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])


STREAM = b': ping\r\n\r\ndata:{"choices":[{"text":"a"}]}\r\n\r\ndata: {"choices":[{"text":"b"}]}\n\n'


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (STREAM + b"data: [DONE]\n\n", None),
        (STREAM, "the stream ended before [DONE]"),
        (STREAM + b"data: {]\n\n", "not JSON"),
        (STREAM + b"data: []\n\n", "not a JSON object"),
        (STREAM + b"data: " + b" " * 2**21, "more than"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_any_server_and_any_split(tmp_path: Path, stream: bytes, reason: str | None, whole: bool) -> None:
    parts = [stream] if whole else [bytes([byte]) for byte in stream[:200]] + [stream[200:]]
    output = tmp_path / "o"
    with serve(other_server(parts)) as url:
        flags = ("--clients", "1", "--requests", "1", "--warmup", "0", "--model", "m", "--output", str(output))
        rc = main(["--base-url", f"{url}/v1", *SMALL, *flags])
    assert rc == (0 if reason is None else 1)
    point = last_run(output)["points"][0]
    assert point["output_tokens"] == 2
    assert point["tokens_counted_by"] == {"chunks": 1}
    assert reason is None or reason in next(iter(point["requests"]["reasons"]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clients", "1,0"], "--clients: must be a whole number of 1 or more, not '0'"),
        (["--rates", "nan"], "--rates: must be a number of 0 or more, not 'nan'"),
        (["--rates", "0"], "--rates: must be more than 0"),
        (["--prompt-kind", "text"], "--prompt-kind text needs --tokenizer"),
        (["--vocab-size", "4"], "--vocab-size must be more than 4"),
        (["--plot", "/nowhere/plot.png"], "there is no directory /nowhere"),
    ],
)
def test_wrong_flags(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "/nowhere/o"], "--output /nowhere/o"),
        (["--prompt-max", "120"], "--shared-prefix + --prompt-max + --output-max is 136"),
        (["--base-url", "http://127.0.0.1:1/v1"], "cannot use --base-url http://127.0.0.1:1/v1"),
        (["--prompt-kind", "text", "--tokenizer", "/nowhere"], "/nowhere does not exist"),
    ],
)
def test_what_cannot_start(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    engine = fake_engine()
    with served(engine) as url:
        assert main(["--base-url", url, *SMALL, *flags]) == 2
    assert message in capsys.readouterr().err
    assert engine.requests == []


def test_a_server_without_a_list_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(other_server([])) as url:
        assert main(["--base-url", f"{url}/v1", *SMALL]) == 2
    assert "--model is needed" in capsys.readouterr().err
