"""Random files: a batch fails whole, with its faults, or gives every line exactly one result."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Batches
from tests.server.api.test_fuzz import JSON, SCALARS, bodies
from tests.support.batch_client import line, run
from tests.support.fakes import MODEL
from tests.support.fuzzing import LONG, QUICK
from tests.support.server_app import client_of, fake_engine

ODD: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"custom_id": SCALARS, "method": SCALARS, "url": SCALARS, "body": JSON, "more": SCALARS}
)
RAW = st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode())


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[str] | None]:
    """A file, and its custom_ids where it has nothing but requests, good or bad."""
    bad = draw(st.integers(0, 2)) == 0
    lines = [
        {**line(f"é{i}"), "body": draw(bodies() | st.just({"model": MODEL, "prompt": "a", "max_tokens": 2}))}
        for i in range(draw(st.integers(1, 4)))
    ]
    texts = [json.dumps(item, ensure_ascii=draw(st.booleans())).encode() for item in lines]
    if bad:
        odd = draw(RAW | st.builds(lambda item: json.dumps({**lines[0], **item}).encode(), ODD))
        texts.insert(draw(st.integers(0, len(texts))), odd)
    separator = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \n"]))
    end = draw(st.sampled_from([b"", separator]))
    return separator.join(texts) + end, None if bad else [item["custom_id"] for item in lines]


def check(content: bytes, names: list[str] | None) -> None:
    engine = fake_engine()
    with (
        TemporaryDirectory() as directory,
        client_of(engine, ServerConfig(batches=Batches(batch_dir=Path(directory)))) as client,
    ):
        batch, done, failed = run(client, content)
        assert not engine.open
        if batch.status == "failed":
            assert names is None
            assert batch.errors is not None
            assert batch.errors.data
            assert (done, failed, engine.requests) == ([], [], [])
            return
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {
            "total": len(done) + len(failed),
            "completed": len(done),
            "failed": len(failed),
        }
        found = [item["custom_id"] for item in (*done, *failed)]
        assert len(set(found)) == len(found)
        assert names is None or sorted(found) == sorted(names)
        assert {item["response"]["status_code"] for item in done} <= {200}
        assert {item["response"]["status_code"] for item in failed} <= {400, 404}


@QUICK
@given(files())
def test_fuzz(case: tuple[bytes, list[str] | None]) -> None:
    check(*case)


@pytest.mark.full
@LONG
@given(files())
def test_fuzz_long(case: tuple[bytes, list[str] | None]) -> None:
    check(*case)
