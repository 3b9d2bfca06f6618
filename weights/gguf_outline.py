"""Describe GGUF files without converting them: outlines of their conversions, from their headers. Host only, no jax.

An outline is a directory as a conversion is one, with files of the sizes of the GGUF file's parts in place of
parameters. They are sparse, and take no space.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from jaxgen.weights import gguf
from jaxgen.weights.gguf.file import parts_of_file
from jaxgen.weights.load import OfGguf, load_model_config
from jaxgen.weights.manifest import MANIFEST, FileRecord
from jaxgen.weights.names import family_name, parameters


@contextmanager
def gguf_outlines() -> Iterator[OfGguf]:
    """Give a function that makes outlines, for ``resolve_model``. The outlines are deleted when the context ends.

    In errors that leave the context, the files stand for the directories of their outlines.
    """
    with ExitStack() as stack:

        def outline(file: Path) -> Path:
            directory, tensors = stack.enter_context(gguf.opened(file))
            config = load_model_config(directory)
            tensors.check(parameters(config), None)
            (directory / "params").mkdir()
            records = {}
            for number, part in enumerate(parts_of_file(file)):
                name, size = f"params/{number}", part.stat().st_size
                with (directory / name).open("wb") as hole:
                    hole.truncate(size)
                records[name] = asdict(FileRecord(size, ""))
            about = {"format_version": 1, "family": family_name(config), "dtype": config.dtype, "files": records}
            (directory / MANIFEST).write_text(json.dumps(about), encoding="utf-8")
            return directory

        yield outline
