"""What ends a command early is told in one line, the last one; Ctrl-C ends it without any."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from jaxgen.server.cli import main
from jaxgen.server.commands import show_config, tune
from jaxgen.server.commands.dispatch import COMMANDS, dispatch
from jaxgen.server.commands.interrupt import INTERRUPTED
from jaxgen.server.flags.serve_options import make_parser
from tests.support.paths import ROOT

NOT_UTF8 = os.fsdecode(b"/tmp/n\xff")


def ended(*arguments: str) -> int:
    """Return the exit code of a command."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which a command ends that cannot run."""
    assert ended(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"jaxgen {arguments[0]}: ")
    return line


@pytest.mark.parametrize("content", ["", "# port: 1\n", "---\n# nothing\n", "{}"])
def test_a_file_without_keys_sets_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text(content)
    found, without = (vars(make_parser().parse_args(given)) for given in (["--config", str(file)], []))
    assert found == {**without, "config": str(file)}


def test_a_merged_key_may_be_set_again(tmp_path: Path) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text("<<: {max-n: 3, port: 5}\nmax-n: 4\n")
    args = make_parser().parse_args(["--config", str(file)])
    assert (args.max_n, args.port) == (4, 5)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxgen {version('jaxgen')}\n"


def test_a_command_works_where_its_directory_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    command = [sys.executable, "-m", "jaxgen.server.cli", "plan", str(ROOT / "weights" / "demo")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "jaxgen: the working directory was deleted; working in / instead"


@pytest.mark.parametrize(("name", "says"), [(b"\xc3\xa9", "set LC_ALL=C.UTF-8"), (b"\xff", "is not valid UTF-8")])
def test_a_good_path_under_another_encoding_names_the_locale(name: bytes, says: str) -> None:
    command: list[Any] = [sys.executable, "-m", "jaxgen.server.cli", "plan", b"/tmp/" + name]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert "--model" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_flag_is_one_line_that_names_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, command, *(["a", "b"] if command == "convert-weights" else []), "--quite-unknown=1")
    assert line == f"jaxgen {command}: unrecognized arguments: --quite-unknown=1 (jaxgen {command} --help)"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--port", "99999"], "--port: '99999' is not a valid port: write a number from 0"),
        (["serve", "--port", "abc"], "--port: 'abc' is not a valid port"),
        (["serve", "--port=-1"], "--port: '-1' is not a valid port"),
        (["config", "--prot", "1"], "--prot 1; the nearest is --port"),
        (["serve", "--pipeline-parallel-size", "2"], "size 2; --tensor-parallel-size divides a model between devices"),
        (
            ["serve", "--data_parallel_size=2"],
            "size=2; run a server on each device, behind a router",
        ),
        (["serve", "--host", ""], "--host: it is empty"),
        (["tune", "--rounds", "x"], "--rounds"),
        (["verify-determinism", "--requests", "3"], "--requests must be 14 or more"),
        (["convert-weights"], "SOURCE, DEST"),
        (["benchmark", "--clients", "0"], "--clients"),
    ],
)
def test_a_wrong_value_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, *arguments)
    assert says in line
    assert line.endswith(f" (jaxgen {arguments[0]} --help)")


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["tune", "--cache-dir", NOT_UTF8], "--cache-dir"),
        (["verify-determinism", "--model", NOT_UTF8], "--model"),
        (["convert-weights", "weights/demo", NOT_UTF8], "DEST"),
    ],
)
def test_a_path_that_is_not_utf8_is_refused(
    arguments: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line == f"jaxgen {arguments[0]}: {flag} '/tmp/n\\udcff' is not valid UTF-8: use a path that is"


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/file")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FULL, "/cache/file: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "a", None, "b"), "a -> b: No space left on device"),
        (OSError("no words of the system"), "no words of the system"),
        (sqlite3.OperationalError("database or disk is full"), "database or disk is full"),
    ],
)
def test_a_full_disk_is_one_line(
    command: str, error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    assert refusal(capsys, command) == f"jaxgen {command}: {line}"


@pytest.mark.parametrize("command", COMMANDS)
def test_control_c_ends_a_command_without_a_word(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert ended(command) == INTERRUPTED == 130
    assert capsys.readouterr() == ("", "")


@pytest.fixture(autouse=True)
def _control_c() -> Iterator[None]:
    """A process in the background of a shell is started with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_control_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_control_c_that_a_library_turns_into_another_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Sequence[str]) -> int:
        try:
            press_control_c()
        except KeyboardInterrupt as error:
            raise ImportError("Encountered an error while initializing the extension.") from error
        return 0

    run_instead(fail, monkeypatch)
    assert ended("tune") == INTERRUPTED
    assert capsys.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_control_c_during_an_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It ends the process at once: what numpy's import makes of a KeyboardInterrupt is printed, or aborts."""
    (tmp_path / "interrupted_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)

    def work(_: Sequence[str]) -> int:
        try:
            __import__("interrupted_module")
        except KeyboardInterrupt as error:
            raise AssertionError from error
        return 0

    run_instead(work, monkeypatch)
    with pytest.raises(SystemExit) as ends:
        main(["tune"])
    assert ends.value.code == INTERRUPTED


class Dropping:
    def __del__(self) -> None:
        press_control_c()


def test_control_c_that_a_callback_drops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: Sequence[str]) -> int:
        Dropping()
        sleep(60)
        return 0

    run_instead(work, monkeypatch)
    assert ended("tune") == INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(ZeroDivisionError("a mistake"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(["config"])


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[str]) -> int:
        raise error

    run_instead(fail, monkeypatch)


def run_instead(command: Callable[[Sequence[str]], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda _: SimpleNamespace(main=command))


def test_what_a_command_raises_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that cannot be kept, as tune finds out at its end."""

    def fail(_: Any) -> None:
        raise FULL

    monkeypatch.setattr(tune, "_tune", fail)
    assert ended("tune") == 2
    assert capsys.readouterr().err.splitlines()[-1] == "jaxgen tune: /cache/file: No space left on device"


def test_underscores_are_taken_for_dashes(tmp_path: Path) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text("max_model_len: 512\nno_compilation_cache: true\n--max-n: 3\nmax_num_batched_tokens: 7\n")
    args = make_parser().parse_args(["--config", str(file), "--block_size=16", "--num_blocks", "9"])
    assert (args.max_model_len, args.compilation_cache, args.max_n, args.token_budget) == (512, False, 3, 7)
    assert (args.block_size, args.num_blocks) == (16, 9)
    args = make_parser().parse_args(["--config", str(file), "--max_model_len", "64", "--served-model-name", "a_b"])
    assert (args.max_model_len, args.served_model_name) == (64, "a_b"), "the command line wins; values stay"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("max_modl_len: 512", "max_modl_len is not a flag; the nearest is max-model-len"),
        ("xyzzy: 1", "xyzzy is not a flag"),
        ("5: 1", "5 is not a flag"),
        ("max_n: 3\nmax-n: 4", "max-n is there twice"),
        ("max-n: 3\nport: 1\nmax-n: 3", "max-n is there twice"),
        ("{max-n: 3, max-n: 3}", "max-n is there twice"),
        ("port: [", "flow node"),
        ("- port", "mapping"),
    ],
)
def test_a_wrong_key_of_a_file_is_named_with_the_file(
    tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jaxgen.yaml"
    file.write_text(content)
    line = refusal(capsys, "config", "--config", str(file))
    assert says in line
    assert str(file) in line
    assert show_config.main(["--max-n", "3"]) == 0
