"""What npm has of Anthropic's: its package for node, and Claude Code, which does a task of four calls."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import SCRIPTED, call, packages_of, run_node, script

PACKAGES = packages_of("anthropic_node")
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not (PACKAGES / ".installed").exists(),
        reason="npm did not answer, or is not there: it installs what tests/clients/anthropic_node/ pins",
    ),
]


def test_the_package_for_node(scripted: str) -> None:
    run_node("anthropic_node", scripted)


def claude(url: str, tmp_path: Path, prompt: str) -> list[dict[str, Any]]:
    """The transcript of ``claude -p``, which must succeed, in an empty folder and with nothing of the user's."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (program,) = PACKAGES.glob("node_modules/@anthropic-ai/claude-code-*/claude")
    done = subprocess.run(
        [
            str(program),
            "-p",
            prompt,
            "--output-format",
            "stream-json",
            "--verbose",
            "--allowedTools",
            "Write,Read,Edit,Bash",
        ],
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": SCRIPTED,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": SCRIPTED,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_claude_code_does_a_task_of_four_calls(scripted: str, tmp_path: Path) -> None:
    """It writes a file, reads it, changes it, runs a command, and says what the model could not know."""
    file = str(tmp_path / "work" / "notes.txt")
    calls = (
        "I write it.\n" + call("Write", file_path=file, content="alpha\nbeta\n"),
        call("Read", file_path=file),
        call("Edit", file_path=file, old_string="beta", new_string="gamma"),
        call("Bash", command="tr a-z A-Z < notes.txt", description="Show the file"),
    )
    transcript = claude(scripted, tmp_path, script(*calls, "It said: $RESULT"))
    blocks = [block for line in transcript if line["type"] == "assistant" for block in line["message"]["content"]]
    assert [block["name"] for block in blocks if block["type"] == "tool_use"] == ["Write", "Read", "Edit", "Bash"]
    assert (tmp_path / "work" / "notes.txt").read_text() == "alpha\ngamma\n"
    last = transcript[-1]
    assert (last["subtype"], last["is_error"]) == ("success", False)
    assert last["result"] == "It said: ALPHA\nGAMMA"
