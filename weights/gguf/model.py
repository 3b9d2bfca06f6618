"""Convert GGUF files, llama.cpp's format: what is needed of one to make a converted directory. Host only, no jax.

The gguf package, which reads the files and dequantises blocks, is imported where it is used: it is an extra.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.file_names import CONFIG, GENERATION_CONFIG
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.architectures import architecture_of
from jaxgen.weights.gguf.configuration import config_of, own_fields, pooling_of
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.sampling import sampling_of
from jaxgen.weights.gguf.tensors import GgufTensors
from jaxgen.weights.gguf.vocabulary import ends_of, write_tokenizer
from jaxgen.weights.huggingface.config import read_model_config
from jaxgen.weights.huggingface.pooling import pooling_files


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, GgufTensors]]:
    """Give a directory with all of a GGUF model but its weights, as Hugging Face writes it, and its tensors.

    The directory is deleted when the context ends; in errors that leave the context, the file stands for it. Raises
    ConfigError for a file that cannot be converted.
    """
    file = GgufFile(path)
    with TemporaryDirectory(prefix="jaxgen-gguf-") as name:
        directory = Path(name)
        try:
            _write(directory / CONFIG, config_of(file))
            architecture = architecture_of(file)
            _write(directory / GENERATION_CONFIG, ends_of(file, architecture) | sampling_of(file))
            write_tokenizer(file, architecture, directory)
            if (pooling := pooling_of(own_fields(file, architecture))) is not None:
                for file_name, data in pooling_files(pooling).items():
                    _write(directory / file_name, data)
            config = read_model_config(ModelFiles(directory))
            assert isinstance(config, DecoderConfig)
            yield directory, GgufTensors(file, architecture, config)
        except ConfigError as error:
            raise type(error)(str(error).replace(name, str(path))) from error


def _write(path: Path, data: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
