"""Servers that share a cache directory: they start at once on a fresh one, and on one with damaged files."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import httpx2
import pytest

from tests.support.damaged_files import DAMAGES
from tests.support.native import quick_compiler
from tests.support.server_process import ServerProcess, served


def kept_files(cache: Path) -> Iterator[Path]:
    """All that a later start reads: not locks, and not when an entry was last used."""
    for path in sorted(cache.rglob("*")):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith("-atime"):
            yield path


def answer(server: ServerProcess) -> object:
    body = {"model": "jaxgen-default", "prompt": "def main():", "max_tokens": 24, "logprobs": 5, "seed": 1}
    return httpx2.post(f"{server.url}/completions", json=body, timeout=60).json()["choices"]


def warnings(server: ServerProcess) -> list[str]:
    return [line for line in server.log().splitlines() if "WARNING" in line]


@pytest.mark.full
@pytest.mark.usefixtures("without_programs")
def test_two_servers_at_once_and_damage_of_every_file(tmp_path: Path) -> None:
    """Full: four servers start, three of which compile."""
    cache, environment = tmp_path / "cache", quick_compiler(tmp_path)
    flags = ("--cache-dir", str(cache), "--single-shape")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: stack.enter_context(served(*flags, environment=environment)), range(2)))
        answers = [answer(server) for server in both]
        assert answers[0] == answers[1]
        assert [warnings(server) for server in both] == [[], []]
    before = list(kept_files(cache))
    folders = {path.relative_to(cache).parts[0] for path in before}
    assert folders == {"compiled", "tokenizers", "kernels", "starts", "prepared", "traced", "templates"}, (
        "each kind of file that a start on a CPU writes"
    )
    for path, name in zip(before, cycle(("cut", "another bit"))):
        path.write_bytes(DAMAGES[name](path.read_bytes()))
    with served(*flags, environment=environment) as server:
        assert answer(server) == answers[0]
        said = warnings(server)
    of_several = {"templates", "kernels"}  # a start reads several files of these, and warns of each
    num_files = sum(not of_several.isdisjoint(path.parts) for path in before)
    assert len(said) == len(folders - of_several) + num_files, said
    assert all(any(str(cache / folder) in line for line in said) for folder in folders)
    assert list(kept_files(cache)) == before, "all are there again, and nothing else"
    with served(*flags, environment=environment) as server:
        assert answer(server) == answers[0]
        assert warnings(server) == []
