"""Flags from the command line, the environment and a file, and the page that lists them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxgen.server.benchmark import options
from jaxgen.server.cli import main
from jaxgen.server.commands import plan, tune, verify
from jaxgen.server.flags.serve_options import engine_options, make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.environment import OTHERS
from scripts.make.flags_page import PAGE, tables
from tests.support.paths import ROOT


def parsed(*arguments: str) -> Any:
    return make_parser().parse_args(list(arguments))


def test_the_page_has_every_flag_as_help_shows_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name, table in tables().items() if table not in page]
    assert not missing, "run: python -m scripts.make.flags_page"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text("port: 1\nblock-size: 2\nmax-n: 3\nenable-prefix-caching: false\nno-compilation-cache: true\n")
    monkeypatch.setenv("JAXGEN_PORT", "11")
    monkeypatch.setenv("JAXGEN_BLOCK_SIZE", "12")
    args = parsed("--config", str(file), "--port", "21")
    assert (args.port, args.block_size, args.max_n) == (21, 12, 3)
    assert (engine_options(args).prefix_caching, args.compilation_cache) == (False, False)
    assert server_config(args).limits.max_n == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [("prot: 1", "prot"), ("port: [", "jaxgen.yaml"), ("port: many", "port"), ("dtype: float8", "dtype")],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit) as refused:
        parsed("--config", str(file))
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


def test_passwords_are_not_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAXGEN_KV_TIER_PASSWORD", "secret")
    monkeypatch.setenv("JAXGEN_KV_TIER_KEY", "secret of sixteen bytes")
    endpoint = ["--otlp-traces-endpoint", "https://me:secret@collector:4318/v1/traces"]
    assert main(["config", "--kv-tier", "rediss://me:secret@host/1", *endpoint]) == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed
    found = yaml.safe_load(printed)
    assert (found["kv-tier"], found["kv-tier-password"], found["kv-tier-key"]) == ("rediss://***@host/1", "***", "***")
    assert found["otlp-traces-endpoint"] == "https://***@collector:4318/v1/traces"


def test_what_is_printed_is_a_file_for_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAXGEN_CACHE_DIR")
    flags = ("--port", "9", "--no-enable-prefix-caching", "--no-compilation-cache", "--single-shape", "--seed", "0")
    assert main(["config", *flags, "--api-key", "secret", "--api-key", "other", "--cache-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed
    assert yaml.safe_load(printed)["api-key"] == ["***", "***"]
    file = tmp_path / "jaxgen.yaml"
    file.write_text(printed)
    again = parsed("--config", str(file))
    given = parsed(*flags, "--api-key", "***", "--api-key", "***", "--cache-dir", str(tmp_path), "--config", str(file))
    assert vars(again) == vars(given)
    assert again.port == 9
    assert main(["config", "--config", str(file)]) == 0
    assert capsys.readouterr().out == printed


def test_values_without_sense_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--max-n", "0"]) == 2
    assert "max_n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["config", "serve"])
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("JAXGEN_MAX_NUM_SEQ", "JAXGEN_MAX_NUM_SEQS"),
        ("JAXGEN_PROT", "JAXGEN_PORT"),
        ("JAXGEN_MAX_NUM_BATCHED_TOKENS", "JAXGEN_TOKEN_BUDGET"),
        ("JAXGEN_NO_ENABLE_PREFIX_CACHING", "JAXGEN_ENABLE_PREFIX_CACHING"),
        ("JAXGEN_XYZZY", ""),
    ],
)
def test_a_variable_that_sets_no_flag_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, name: str, near: str
) -> None:
    monkeypatch.setenv(name, "8")
    with pytest.raises(SystemExit) as refused:
        main([command, "--max-n", "0"])  # which would end it too, later
    assert refused.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1].removesuffix(f" (jaxgen {command} --help)")
    assert last.endswith(f"the environment variable {name} sets no flag" + (f"; {near} does" if near else ""))


KUBERNETES = """SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT_80_TCP PORT_80_TCP_ADDR PORT_80_TCP_PORT
    PORT_80_TCP_PROTO CPU_SERVICE_HOST CPU_SERVICE_PORT CPU_PORT CPU_PORT_80_TCP_ADDR"""


def test_variables_that_kubernetes_makes_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in KUBERNETES.split():
        monkeypatch.setenv(f"JAXGEN_{name}", "x")
    assert main(["config"]) == 0
    monkeypatch.setenv("JAXGEN_PORT", "tcp://10.0.0.1:80")
    assert main(["config", "--port", "9"]) == 0
    with pytest.raises(SystemExit) as refused:
        main(["config"])
    assert refused.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--port" in last
    assert "enableServiceLinks: false" in last


def test_variables_of_other_commands_and_scripts_are_known() -> None:
    def read(parser: CommandLine) -> set[str]:
        parser.parse_known_args([])
        return {action.env_var for action in parser._actions if action.env_var}

    known = read(make_parser()) | OTHERS
    for command in (plan, tune, verify, options):
        assert read(command.make_parser()), command
        assert read(command.make_parser()) <= known, command
    scripts = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".sh", ".py")]
    used = {name for path in scripts for name in re.findall(r"JAXGEN_[A-Z_]+", path.read_text(encoding="utf-8"))}
    assert used <= known


def test_nobody_is_told_to_install_from_an_index() -> None:
    """There is no such package on any."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "server").rglob("*.py")]
    assert [page.name for page in pages if re.search(r"pip install \S*jaxgen", page.read_text(encoding="utf-8"))] == []
