"""Codex CLI, by its command: it runs commands that the model asks for, and tells what came of them."""

import os
import subprocess
from pathlib import Path

import pytest
from codex_cli_bin import bundled_codex_path

from tests.clients.conftest import SCRIPTED, call, script

pytestmark = pytest.mark.clients
CONFIG = """\
model = "{model}"
model_provider = "jaxgen"
check_for_update_on_startup = false

[model_providers.jaxgen]
name = "jaxgen"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""


def codex(url: str, tmp_path: Path, prompt: str) -> str:
    """The last message of ``codex exec``, which must succeed, in an empty folder and with nothing of the user's."""
    home, work, last = tmp_path / "home", tmp_path / "work", tmp_path / "last"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(CONFIG.format(model=SCRIPTED, url=url))
    options = [
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        "--output-last-message",
        str(last),
    ]
    done = subprocess.run(
        [str(bundled_codex_path()), "exec", *options, prompt],
        cwd=work,
        env={**os.environ, "HOME": str(home), "CODEX_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return last.read_text()


def test_a_command_in_three_turns(scripted: str, tmp_path: Path) -> None:
    """It writes a file, reads what the model could not know, and says it."""
    write = call("exec_command", cmd="expr 6 \\* 7 > number")
    read = call("exec_command", cmd="echo marked $(cat number)")
    said = codex(scripted, tmp_path, script(write, read, "It said: $RESULT"))
    assert (tmp_path / "work" / "number").read_text() == "42\n"
    assert said.startswith("It said: ")
    assert "marked 42" in said
