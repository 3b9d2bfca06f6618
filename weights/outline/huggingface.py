"""Make an outline of a model on the hub: its configuration, and its weights' headers without the weights. No jax.

The outline is a directory that can be examined as a downloaded one. Its safetensors files have their true headers and
sizes, but no contents: they are sparse, and take no space. Of the tokenizer's files it has the names alone.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import huggingface_hub
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.file_names import CONFIG, QUANTIZATION_FILES, TOKENIZER_FILES
from jaxgen.weights.files.members import member
from jaxgen.weights.files.safetensors import LENGTH_BYTES
from jaxgen.weights.files.weight_files import SINGLE, index_among, unlisted, weight_map
from jaxgen.weights.huggingface.hub import SECONDS, Fetch
from jaxgen.weights.resolve import download_model

_AT_ONCE = 8


@contextmanager
def outlines() -> Iterator[Fetch]:
    """Give a function that makes outlines, for ``resolve_model``. The outlines are deleted when the context ends.

    In errors that leave the context, hub ids stand for the directories of their outlines.
    """
    names: dict[str, str] = {}

    def fetch(name: str, hub: HubOptions) -> Path:
        folder = Path(root, str(len(names)))
        names[str(folder)] = name
        return _outline(name, hub, folder)

    with TemporaryDirectory(prefix="jaxgen-outline-") as root, _without_bars():
        try:
            yield fetch
        except ConfigError as error:
            message = str(error)
            for folder, name in names.items():
                message = message.replace(folder, name)
            raise type(error)(message) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the hub's client from showing bars for small files."""
    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _outline(name: str, hub: HubOptions, folder: Path) -> Path:
    """Make an outline in ``folder``, and return it; where the hub cannot be asked, return what its cache has.

    Headers come by range requests, of 100 kB at first, the other files whole. Raises the errors of the hub's client.
    """
    try:
        info = huggingface_hub.HfApi().model_info(name, revision=hub.revision, timeout=SECONDS)
    except Exception:
        with suppress(Exception):
            return download_model(name, hub, cached=True)
        raise
    there = {sibling.rfilename for sibling in info.siblings or ()}
    folder.mkdir()
    outside = {file for file in there if "/" not in file}
    index = index_among(outside)
    for file in sorted(there & {CONFIG, *([index] if index else []), *QUANTIZATION_FILES}):
        huggingface_hub.hf_hub_download(name, file, revision=info.sha, local_dir=folder)
    for file in there & {*TOKENIZER_FILES}:
        member(folder, file).parent.mkdir(exist_ok=True)
        member(folder, file).touch()
    indexed = set(weight_map(folder, index).values()) if index else set()
    files = (indexed if indexed and (indexed <= there or SINGLE not in there) else set(unlisted(outside))) & there

    def write(file: str) -> None:
        header = huggingface_hub.HfApi().parse_safetensors_file_metadata(name, file, revision=info.sha)
        _write_sparse(member(folder, file), header)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(write, sorted(files)))
    return folder


def _write_sparse(path: Path, header: Any) -> None:
    """Write a safetensors file with this header of the hub's client, and a hole in place of the tensors."""
    entries: dict[str, Any] = {"__metadata__": header.metadata} if header.metadata else {}
    entries |= {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
        for name, tensor in header.tensors.items()
    }
    text = json.dumps(entries).encode()
    end = max((tensor.data_offsets[1] for tensor in header.tensors.values()), default=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        file.truncate(LENGTH_BYTES + len(text) + end)
