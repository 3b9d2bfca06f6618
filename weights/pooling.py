"""Read how a model's embeddings are pooled from sentence-transformers' files. Host only, no jax."""

from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import Pooling, PoolingChoice
from jaxgen.weights.files import MODULES, member, read_json, read_json_list

_WAYS = {
    "mean": Pooling.MEAN,
    "mean_tokens": Pooling.MEAN,
    "lasttoken": Pooling.LAST,
    "cls": Pooling.CLS,
    "cls_token": Pooling.CLS,
}
"""Pooling by the value of pooling_mode, or by the suffix of a field pooling_mode_* that is true."""
_MODE = "pooling_mode_"
_HONOURED = ("Transformer", "Pooling", "Normalize")
"""Supported modules. Normalize needs no work: vectors have length 1 in any case."""
_REMEDY = "choose mean, last or cls with --pooling"


def read_pooling(directory: Path, choice: PoolingChoice = "auto") -> Pooling:
    """Return ``choice``; for "auto" the pooling by modules.json and the file it names, or without it the mean.

    The mean is sentence-transformers' default too. Raises ConfigError for unsupported modules or pooling, which names
    the file and the flag that overrides it.
    """
    if choice != "auto":
        return Pooling(choice)
    if not member(directory, MODULES).is_file():
        return Pooling.MEAN
    file = _config_file(directory)
    config = read_json(directory, file)
    ways = [name.removeprefix(_MODE) for name, on in config.items() if name.startswith(_MODE) and on]
    if isinstance(config.get("pooling_mode"), str):
        ways = [config["pooling_mode"]]
    if len(ways) != 1 or ways[0] not in _WAYS:
        raise ConfigError(f"{directory / file}: cannot pool by {' and '.join(ways) or 'nothing'}; {_REMEDY}")
    return _WAYS[ways[0]]


def _config_file(directory: Path) -> str:
    """Return the name of the pooling module's configuration file."""
    path, found = directory / MODULES, None
    for module in read_json_list(directory, MODULES):
        kind, where = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(where, str):
            raise ConfigError(f"{path}: each module must be an object with a type and a path; {_REMEDY}")
        name = kind.rpartition(".")[2]
        if name not in _HONOURED:
            raise ConfigError(f"{path}: embeddings cannot pass through {name}; to leave it out, {_REMEDY}")
        if name == "Pooling":
            found = f"{where}/config.json"
    if found is None:
        raise ConfigError(f"{path} names no module that pools; {_REMEDY}")
    return found
