"""Flags of serve and of the commands that load a model: names without a flag, aliases, addresses and the help."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxgen.core.config import HubOptions
from jaxgen.server.cli import main
from jaxgen.server.commands import serve, tune, verify
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.terminal.model_flags import hub_options
from jaxgen.weights.convert import command as convert


def parsed(*arguments: str) -> Any:
    return make_parser().parse_args(list(arguments))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as refused:
        parsed(*arguments)
    assert refused.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("jaxgen serve: ").removesuffix(" (jaxgen serve --help)")


@pytest.mark.parametrize("arguments", [["M", "--port", "1"], ["--port", "1", "M"], ["--log-prompts", "M", "--port=1"]])
def test_a_model_needs_no_flag(arguments: list[str]) -> None:
    args = parsed(*arguments)
    assert (args.model, args.port) == ("M", 1)


@pytest.mark.parametrize("command", [tune, verify])
def test_commands_that_load_a_model_take_its_flags(command: Any) -> None:
    args = command.parse_options(["org/m", "--revision", "r", "--download-dir", "/d", "--dtype", "half"])
    assert (args.model, args.dtype) == ("org/m", "float16")
    assert hub_options(args) == HubOptions(revision="r", download_dir=Path("/d"))


def test_a_converter_takes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(convert, "convert", lambda *args, **options: asked.append((args, options)))
    convert.main(["org/m", "dest", "--revision", "r", "--dtype", "float"])
    (((source, _), options),) = asked
    assert (source, options["dtype"], options["hub"].revision) == ("org/m", "float32", "r")


def test_a_model_without_its_flag_wins_as_the_flag_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text("model: of-the-file\n")
    assert parsed("--config", str(file), "M").model == "M"
    monkeypatch.setenv("JAXGEN_MODEL", "of-the-environment")
    assert parsed("M").model == "M"
    assert parsed("--config", str(file)).model == "of-the-environment"
    assert parsed("M", "--model", "M").model == "M"


def test_two_models_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "A", "--model", "B") == "MODEL A and --model B differ: give one of them"
    assert refusal(capsys, "A", "B") == "unrecognized arguments: B"
    assert refusal(capsys, "A", "--model=B").startswith("MODEL A and --model B")


@pytest.mark.parametrize(("name", "dtype"), [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")])
def test_dtypes_have_their_other_names(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("--dtype", name).dtype == dtype
    monkeypatch.setenv("JAXGEN_DTYPE", name)
    assert parsed().dtype == dtype


def test_what_serve_hands_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    name = "jaxgen.assembly.load_engine.load_engine"
    monkeypatch.setattr(name, lambda model, **options: asked.update(options, model=model))
    flags = ("--revision", "r", "--download-dir", "/d", "--tokenizer", "T", "--generation-config", "none")
    serve.open_engine(parsed("org/m", *flags))
    assert (asked["model"], asked["tokenizer"], asked["generation_config"]) == ("org/m", "T", "none")
    assert asked["hub"] == HubOptions(revision="r", download_dir=Path("/d"))


def test_a_unix_socket_takes_the_place_of_an_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (parsed().host, parsed().port, parsed().uds) == ("127.0.0.1", 8000, None)
    for flag, value in (("--port", "9"), ("--host", "::1")):
        said = f"--uds /s takes the place of {flag} {value}: give one of them"
        assert refusal(capsys, "--uds", "/s", flag, value) == said
    monkeypatch.setenv("JAXGEN_PORT", "9")
    args = parsed("--uds", "/s")
    assert (args.host, args.port, args.uds) == (None, None, Path("/s")), "the command line wins over the environment"
    monkeypatch.setenv("JAXGEN_UDS", "/s")
    assert "--port 9" in refusal(capsys)


def test_what_is_printed_of_a_unix_socket_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "M", "--uds", "/s", "--root-path", "/ai/", "--max-log-len", "9"]) == 0
    printed = capsys.readouterr().out
    found = yaml.safe_load(printed)
    assert (found["model"], found["uds"], found["root-path"], found["max-log-len"]) == ("M", "/s", "/ai", 9)
    file = tmp_path / "jaxgen.yaml"
    file.write_text(printed)
    args = parsed("--config", str(file))
    assert (args.model, args.uds, args.host) == ("M", Path("/s"), None)
    config = server_config(args)
    assert (config.proxy.root_path, config.log.max_log_len) == ("/ai", 9)


def test_the_page_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert server_config(parsed()).ui
    assert main(["config", "--no-ui"]) == 0
    file = tmp_path / "jaxgen.yaml"
    file.write_text(capsys.readouterr().out)
    for args in (parsed("--no-ui"), parsed("--config", str(file))):
        assert not server_config(args).ui


@pytest.mark.parametrize("prefix", ["ai", "/a b", "/a?b", "//a", "http://a"])
def test_what_is_no_prefix_is_refused(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--root-path", prefix]) == 2
    assert f"--root-path {prefix!r} is not a valid prefix: write it as" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "config", "tune", "verify-determinism", "benchmark", "convert-weights"])
def test_the_help_fits_a_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    for noise in ("default: None", "default: False", "default: )", "env var", "default: ==SUPPRESS=="):
        assert noise not in " ".join(shown.split()), noise


def test_the_help_of_serve_is_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: jaxgen serve [options] [MODEL]\n")
    groups = re.findall(r"^(\w+):$", shown, re.MULTILINE)
    assert groups == ["options", "model", "engine", "cache", "server", "log", "tls", "cors", "limits"]
    assert "(default: 8000)" in shown
    assert "(default: on)" in shown


def test_arguments_of_the_process_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["jaxgen", "--max_model_len", "7", "M"])
    args = make_parser().parse_args()
    assert (args.max_model_len, args.model) == (7, "M")
