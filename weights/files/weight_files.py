"""Choose which safetensors files of a directory are a model's weights. Host only, no jax.

Files have many names: those of transformers, of its variants, and of tools that quantise. Where a name of transformers
is there, it holds. Else all safetensors files are taken that are not known to be something else.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.file_names import model_hint
from jaxgen.weights.files.members import member, read_json

logger = logging.getLogger(__name__)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_INDICES = re.compile(r".+\.safetensors\.index(\.\w+)?\.json")
_NUMBERED = re.compile(r"(.*?)(\d+)([-_]of[-_])(\d+)(\.safetensors)", re.IGNORECASE)
_SUFFIX = ".safetensors"
_MOST_FILES = 10_000
"""Of a set: a name may count more, and means something else then."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_OTHERS = {
    "adapter": "a LoRA adapter: merge it into its model first, and name the result",
    "consolidated": "Mistral's own format: take the repository's files of transformers, model-00001-of-... and so on",
    "optimizer": "the state of an optimizer",
}
"""What a safetensors file without the weights of a model is, by how its name begins."""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The names of a directory's weight files, and the file of each tensor if an ``index`` says it; see ModelFiles."""

    names: list[str]
    listed: Mapping[str, str]
    index: str | None = None


def weight_files_of(directory: Path) -> WeightFiles:
    """Return a directory's files of weights.

    An index is used if all its files are there; a single file next to it is a leftover. Raises ConfigError for a file
    that is missing, and where there is none.
    """
    there = {path.name for path in directory.iterdir()}
    index = index_among(there)
    if index is not None:
        listed = weight_map(directory, index)
        names = sorted(set(listed.values()))
        lost = next((name for name in names if not member(directory, name).exists()), None)
        if lost is None:
            if SINGLE in there and SINGLE not in names:
                logger.warning("%s: %s is not read, since %s lists other files", directory, SINGLE, index)
            return WeightFiles(names, listed, index)
        if SINGLE not in there:
            raise ConfigError(f"{directory / lost} is missing, but {index} names it: the download is incomplete")
    names = unlisted(there)
    if not names:
        raise _no_weights(directory, there)
    for name in names:
        if not member(directory, name).exists():
            raise ConfigError(
                f"{directory / name} is missing, although other files' names count it: the download is incomplete"
            )
    return WeightFiles(names, {})


def index_among(names: Collection[str]) -> str | None:
    """Return the index of a checkpoint in several files: transformers' own, or the only one, where no whole file is."""
    if INDEX in names:
        return INDEX
    others = [name for name in names if _INDICES.fullmatch(name) and not name.startswith(tuple(_OTHERS))]
    return others[0] if len(others) == 1 and SINGLE not in names else None


def unlisted(names: Collection[str]) -> list[str]:
    """Return the files of weights by their names alone: the single one, a set of numbered ones, or all.

    Of a set all names are returned, including files that are missing.
    """
    if SINGLE in names:
        return [SINGLE]
    of_models = sorted(name for name in names if _is_of_model(name))
    sets = _sets(of_models)
    of_model = [of for of in sets if of[0].startswith("model")]
    if of_model or len(sets) == 1:
        return max(of_model or sets, key=len)
    return of_models


def _is_of_model(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not name.startswith((".", *_OTHERS))


def _sets(names: Iterable[str]) -> list[list[str]]:
    """Return the sets of numbered files, model-00001-of-00003.safetensors and so on, of which there is one.

    Numbers begin at 1, or at 0 where one has it.
    """
    numbers: dict[tuple[str, int, str, str, str], list[int]] = {}
    for name in names:
        if (match := _NUMBERED.fullmatch(name)) is not None:
            prefix, number, of, count, suffix = match.groups()
            numbers.setdefault((prefix, len(number), of, count, suffix), []).append(int(number))
    return [
        [f"{prefix}{number + min(1, *there):0{width}}{of}{count}{suffix}" for number in range(int(count))]
        for (prefix, width, of, count, suffix), there in numbers.items()
        if len(there) <= int(count) <= _MOST_FILES
    ]


def weight_map(directory: Path, index: str = INDEX) -> dict[str, str]:
    """Return the file of each tensor, by the index of a checkpoint in several files. Raises ConfigError."""
    files = read_json(directory, index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ConfigError(f"{directory / index}: weight_map must be an object from tensor names to file names")
    return files


def _no_weights(directory: Path, there: Collection[str]) -> ConfigError:
    """Return the error for a directory without safetensors files of a model."""
    for name in sorted(there):
        what = next((what for begins, what in _OTHERS.items() if name.startswith(begins)), None)
        if what is not None and name.endswith(_SUFFIX):
            return ConfigError(f"{directory} has no weights of a model, only {name}, which is {what}")
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        return ConfigError(
            f"{directory} has its weights in {pickles[0]}, a pickle, which can run code when it is opened; "
            f"only safetensors files are read: save the model again with safetensors"
        )
    return ConfigError(
        f"{directory} has no weights: neither {SINGLE} nor {INDEX} nor other safetensors files{model_hint(directory)}"
    )
