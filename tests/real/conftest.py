"""A real model by its name, as users start it, and a float64 reference of its file.

All tests of this folder get the mark ``real``: ``scripts/test --only real``. They share engines, whose start takes most
of the time. Where pip cannot fetch the package they are skipped.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from jaxgen import LLM
from jaxgen.files.cache_dirs import open_cache_dirs
from jaxgen.weights.convert.command import convert
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.packaged.files import NotFetchedError, fetched
from jaxgen.weights.packaged.models import PACKAGED_MODELS
from tests.support.float64_llama import Float64Llama
from tests.support.real_model import LONG, LONG_TEXT, NAME

HERE = Path(__file__).parent
MOST = LONG + 304
"""--max-model-len of all engines."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    try:
        return fetched(NAME, PACKAGED_MODELS[NAME], open_cache_dirs(), progress=False)
    except NotFetchedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def prepared(gguf_file: Path) -> Iterator[Future[tuple[Float64Llama, npt.NDArray[np.float64]]]]:
    """The reference, and what it says of the second half of the long prompt, computed while engines start."""

    def prepare() -> tuple[Float64Llama, npt.NDArray[np.float64]]:
        with gguf.opened(gguf_file) as (directory, _):
            words = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokens = words.encode(LONG_TEXT.read_text(encoding="utf-8")).ids[:LONG]
        found = Float64Llama(gguf_file)
        return found, found.scores(tokens, LONG // 2)

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(prepare)


@pytest.fixture(scope="session")
def reference(prepared: Future[tuple[Float64Llama, npt.NDArray[np.float64]]]) -> Float64Llama:
    return prepared.result()[0]


@pytest.fixture(scope="session")
def long_scores(prepared: Future[tuple[Float64Llama, npt.NDArray[np.float64]]]) -> npt.NDArray[np.float64]:
    return prepared.result()[1]


@pytest.fixture(scope="session")
def served(prepared: object) -> Iterator[LLM]:
    """As ``jaxgen serve --model smollm2-135m``."""
    with LLM(NAME, max_model_len=MOST) as found:
        yield found


@pytest.fixture(scope="session")
def exact(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """In float32, with the file's very weights."""
    directory = tmp_path_factory.mktemp("exact") / "model"
    convert(str(gguf_file), directory, dtype="float32", progress=False)
    with LLM(str(directory), max_model_len=MOST, single_shape=True) as found:
        yield found
