"""Read how a model's embeddings are made from sentence-transformers' files. Host only, no jax."""

import logging
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import Pooling, PoolingChoice
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.file_names import MODULES, POOLING, SENTENCE_CONFIG, SENTENCE_FILES
from jaxgen.weights.files.model_files import ModelFiles

logger = logging.getLogger(__name__)

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
_MODULE = "sentence_transformers.models"
_SUFFIXES = {Pooling.MEAN: "mean_tokens", Pooling.LAST: "lasttoken", Pooling.CLS: "cls_token"}


def read_pooling(directory: Path, choice: PoolingChoice = "auto") -> Pooling:
    """Return ``choice``; for "auto" the pooling by modules.json and the file it names, or without it the mean.

    The mean is sentence-transformers' default too; a warning tells it where its other files show that modules.json was
    left out. Raises ConfigError for unsupported modules or pooling, which names the file and the flag that overrides
    it.
    """
    if choice != "auto":
        return Pooling(choice)
    files = ModelFiles(directory)
    if not files.path(MODULES).is_file():
        others = [name for name in SENTENCE_FILES if files.path(name).is_file()]
        if others:
            logger.warning(
                "%s has %s, but no %s, which would say how embeddings are pooled: they are pooled by the mean; for "
                "models that take the last token, such as Qwen3-Embedding, say --pooling last",
                directory,
                " and ".join(others),
                MODULES,
            )
        return Pooling.MEAN
    file = _config_file(files)
    config = files.read_json(file)
    ways = [name.removeprefix(_MODE) for name, on in config.items() if name.startswith(_MODE) and on]
    if isinstance(config.get("pooling_mode"), str):
        ways = [config["pooling_mode"]]
    if len(ways) != 1 or ways[0] not in _WAYS:
        raise ConfigError(f"{directory / file}: cannot pool by {' and '.join(ways) or 'nothing'}; {_REMEDY}")
    return _WAYS[ways[0]]


def pooling_files(pooling: Pooling) -> dict[str, Any]:
    """Return the files, by name, in which sentence-transformers writes this pooling, as JSON values."""
    names = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"{_MODULE}.{name}"}
        for i, name in enumerate(names)
    ]
    return {MODULES: modules, POOLING: {f"{_MODE}{suffix}": way is pooling for way, suffix in _SUFFIXES.items()}}


def texts_differ(directory: Path, max_model_len: int) -> list[str]:
    """Return what sentence-transformers does to texts by the model's sentence_bert_config.json, and is not done here.

    One line each. ``max_model_len``: the longest text that is served, in tokens. Raises ConfigError for a damaged file.
    """
    files = ModelFiles(directory)
    if not files.path(SENTENCE_CONFIG).is_file():
        return []
    fields = JsonFields(files.read_json(SENTENCE_CONFIG), str(directory / SENTENCE_CONFIG))
    longest, differences = fields.size_or_null("max_seq_length"), []
    if longest is not None and longest < max_model_len:
        differences.append(
            f"{fields.source}: max_seq_length is {longest}, to which sentence-transformers cuts texts; here they are "
            f"embedded whole: say truncate_prompt_tokens {longest} with a request, or --max-model-len {longest} to "
            f"refuse longer ones"
        )
    if fields.data.get("do_lower_case"):
        differences.append(f"{fields.source}: do_lower_case is true, which is not done here: send texts in lower case")
    return differences


def _config_file(files: ModelFiles) -> str:
    """Return the name of the pooling module's configuration file."""
    path, file = files.directory / MODULES, None
    for module in files.read_json_list(MODULES):
        kind, where = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(where, str):
            raise ConfigError(f"{path}: each module must be an object with a type and a path; {_REMEDY}")
        name = kind.rpartition(".")[2]
        if name not in _HONOURED:
            raise ConfigError(f"{path}: embeddings cannot pass through {name}; to leave it out, {_REMEDY}")
        if name == "Pooling":
            file = f"{where}/config.json"
    if file is None:
        raise ConfigError(f"{path} names no module that pools; {_REMEDY}")
    return file
