"""Flags from the command line, the environment and a file, and the page that lists them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from server.cli import main
from server.serve_options import engine_options, make_parser, server_config

ROOT = Path(__file__).parent.parent


def parsed(*arguments: str) -> Any:
    return make_parser().parse_args(list(arguments))


def test_every_flag_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    flags = [name for action in make_parser()._actions for name in action.option_strings]
    assert [name for name in flags if name not in ("-h", "--help") and f"`{name}`" not in page] == []


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
    assert server_config(args).max_n == 3


@pytest.mark.parametrize("content", ["prot: 1", "port: [", "port: many", "dtype: float8"])
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit) as refused:
        parsed("--config", str(file))
    assert refused.value.code == 2
    assert content.partition(":")[0] in capsys.readouterr().err


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
