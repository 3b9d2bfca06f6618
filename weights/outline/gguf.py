"""Describe GGUF files without converting them: outlines of their conversions, from their headers. Host only, no jax.

An outline is a directory as a conversion is one, with files of the sizes of the GGUF file's parts in place of
parameters. They are sparse, and take no space. Of a file on the hub the header alone is fetched.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import huggingface_hub
from huggingface_hub import get_session, hf_raise_for_status
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from jaxgen.core.config import HubOptions
from jaxgen.core.quantization import Quantization
from jaxgen.weights.converted.manifest import MANIFEST, FileRecord, manifest_text
from jaxgen.weights.families.parameters import family_name, parameters
from jaxgen.weights.files.members import member
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.gguf.file import parts_of_file
from jaxgen.weights.gguf.header import BadHeaderError, check_header
from jaxgen.weights.gguf.source import FetchFiles
from jaxgen.weights.huggingface.hub import SECONDS, download
from jaxgen.weights.load import load_model_config
from jaxgen.weights.resolve import OfGguf

_FIRST = 2**24
"""Bytes that are fetched of a file at first: most vocabularies fit in them."""


@contextmanager
def gguf_outlines(quantization: Quantization = "none") -> Iterator[OfGguf]:
    """Give a function that makes outlines, for ``resolve_model``. The outlines are deleted when the context ends.

    ``quantization``: what matrices are rounded to.
    In errors that leave the context, the files stand for the directories of their outlines.
    """
    with ExitStack() as stack:

        def outline(file: Path) -> Path:
            directory, tensors = stack.enter_context(gguf.opened(file))
            config = load_model_config(directory, quantization=quantization, tensors=tensors)
            tensors.check(parameters(config))
            (directory / "params").mkdir()
            records = {}
            for number, part in enumerate(parts_of_file(file)):
                name, size = f"params/{number}", part.stat().st_size
                with (directory / name).open("wb") as hole:
                    hole.truncate(size)
                records[name] = FileRecord(size, "")
            manifest = manifest_text(family_name(config), config.dtype, records, dict(config.weight_formats))
            (directory / MANIFEST).write_text(manifest, encoding="utf-8")
            return directory

        yield outline


@contextmanager
def gguf_headers() -> Iterator[FetchFiles]:
    """Give a function that fetches headers of GGUF files, for ``resolve_model``; they are deleted with the context.

    Where the hub's cache has the files, they are taken.
    """
    with TemporaryDirectory(prefix="jaxgen-headers-") as root:

        def fetch(name: str, hub: HubOptions, files: Sequence[str]) -> Path:
            with suppress(Exception):
                folder = download(name, hub, files, cached=True)
                if all((folder / file).is_file() for file in files):
                    return folder
            sha = huggingface_hub.HfApi().model_info(name, revision=hub.revision, timeout=SECONDS).sha
            for file in files:
                _fetch_header(huggingface_hub.hf_hub_url(name, file, revision=sha), member(Path(root), file))
            return Path(root)

        yield fetch


def _fetch_header(url: str, path: Path) -> None:
    """Write the beginning of a file that has its header, and a hole in place of the rest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = _FIRST
    while True:
        response = get_session().get(url, headers={**build_hf_headers(), "Range": f"bytes=0-{count - 1}"})
        hf_raise_for_status(response)
        size = int(response.headers["Content-Range"].rpartition("/")[2])
        path.write_bytes(response.content)
        try:
            check_header(path)
            break
        except BadHeaderError:  # which may lie behind what was fetched
            if count >= size:
                break  # reading it says what is wrong
            count *= 2
    with path.open("r+b") as file:
        file.truncate(size)
