"""OpenAI's package for node and Vercel's ai: tests/clients/node/, run by node's own runner."""

import os
import shutil
import subprocess

import pytest

from tests.clients.conftest import ROOT, SCRIPTED

pytestmark = pytest.mark.clients
TESTS = ROOT / "tests" / "clients" / "node" / "clients.test.mjs"
PACKAGES = ROOT / ".venv-clients" / "node_packages"


def test_clients_of_node(scripted: str) -> None:
    """The file goes to the packages, beside which node looks for them."""
    shutil.copy(TESTS, PACKAGES)
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", TESTS.name],
        cwd=PACKAGES,
        env={**os.environ, "URL_OF_SERVER": scripted, "MODEL": SCRIPTED},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
