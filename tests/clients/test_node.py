"""OpenAI's package for node and Vercel's ai: tests/clients/node/, run by node's own runner."""

import pytest

from tests.clients.conftest import run_node

pytestmark = pytest.mark.clients


def test_clients_of_node(scripted: str) -> None:
    run_node("node", scripted)
