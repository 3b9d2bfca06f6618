"""Read how requests to a model become tokens and where its answers end: tokenizer, chat template, defaults, pooling."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.core.identity import digest_of
from jaxgen.core.model_info import ChatFormat, Pooling, PoolingChoice
from jaxgen.core.sampling_params import SamplingDefaults
from jaxgen.files.cache_dirs import CacheDirs
from jaxgen.text.named_templates import TEMPLATE_NAMES, end_of_turn, named_format
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.text.tokenizer_cache import load_tokenizer, text_files
from jaxgen.text.turn_end import turn_end
from jaxgen.weights.huggingface.chat_template import read_chat_format, read_special_tokens
from jaxgen.weights.huggingface.config import read_eos_token_ids
from jaxgen.weights.huggingface.generation_config import read_sampling_defaults
from jaxgen.weights.huggingface.pooling import read_pooling
from jaxgen.weights.resolve import resolve_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextSettings:
    """A model's chat format, the tokens that end its answers, the defaults of requests and the pooling of embeddings.

    ``tokenizer``: the digest of the files that the tokenizer was made from.
    """

    tokenizer: str
    chat: ChatFormat | None
    eos_token_ids: frozenset[int]
    defaults: SamplingDefaults
    pooling: Pooling

    def identity(self) -> dict[str, Any]:
        """Return what of them an answer depends on, for jaxgen.assembly.digest."""
        return {
            "tokenizer": digest_of(self.tokenizer),
            "chat_template": None if self.chat is None else digest_of(asdict(self.chat)),
            "eos_token_ids": sorted(self.eos_token_ids),
            "sampling_defaults": asdict(self.defaults),
            "pooling": str(self.pooling),
        }


def own_text_settings(model: Path) -> TextSettings:
    """Return those of a model's directory, where no flag names others. Raises ConfigError."""
    return TextSettings(
        text_files(model).digest,
        read_chat_format(model, None),
        read_eos_token_ids(model),
        read_sampling_defaults(model, "auto"),
        read_pooling(model, "auto"),
    )


def read_text_settings(
    model: Path,
    vocab_size: int,
    caches: CacheDirs,
    *,
    tokenizer: str | None = None,
    chat_template: Path | str | None = None,
    generation_config: str = "auto",
    pooling: PoolingChoice = "auto",
    hub: HubOptions | None = None,
) -> tuple[Tokenizer, TextSettings]:
    """Return a model's tokenizer and text settings; the arguments are those of ``load_engine``.

    Tokenizers and what is found out of chat templates are kept in ``caches``. Raises ConfigError.
    """
    directory = model if tokenizer is None else resolve_tokenizer(tokenizer, None if hub is None else hub.download_dir)
    files = text_files(directory)
    loaded = load_tokenizer(directory, caches.tokenizers, files)
    if tokenizer is not None:
        _check_size(tokenizer, loaded, vocab_size)
    chat = _chat_format(directory, chat_template, loaded, caches.templates)
    named = read_eos_token_ids(model) | _turn_token_ids(chat_template, loaded)
    settings = TextSettings(
        files.digest,
        chat,
        named | _other_ends(directory, chat, loaded, named, vocab_size, caches.templates),
        read_sampling_defaults(model, generation_config),
        read_pooling(model, pooling),
    )
    files.check()
    return loaded, settings


def _check_size(name: str, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise ConfigError for a tokenizer, named by a flag, that has tokens which the model does not know."""
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"--tokenizer {name} has {tokenizer.vocab_size} tokens, the model has {vocab_size}: "
            "name this model's tokenizer"
        )


def _chat_format(
    directory: Path, chat_template: Path | str | None, tokenizer: Tokenizer, cache: Path | None
) -> ChatFormat | None:
    """Return the chat template of this name, of this file, or of the model; None: it has none. Raises ConfigError."""
    if isinstance(chat_template, str) and chat_template in TEMPLATE_NAMES:
        return named_format(chat_template, tokenizer)
    return read_chat_format(directory, None if chat_template is None else Path(chat_template), cache)


def _turn_token_ids(chat_template: Path | str | None, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that end an answer in addition to the model's own, as the template of this name ends turns."""
    name = end_of_turn(chat_template) if isinstance(chat_template, str) else None
    token = None if name is None else tokenizer.added_token(name)
    if name is not None and token is None:
        logger.warning(
            "--chat-template %s: the model's tokenizer has no token %s, so answers end only where the model ends a "
            "text; the template plain is for such models",
            chat_template,
            name,
        )
    return frozenset() if token is None else frozenset({token})


def _other_ends(
    directory: Path,
    chat: ChatFormat | None,
    tokenizer: Tokenizer,
    named: frozenset[int],
    vocab_size: int,
    cache: Path | None,
) -> set[int]:
    """Return the tokens that end an answer by the tokenizer's files or by the chat template alone, and log them."""
    eos = read_special_tokens(directory).get("eos_token")
    sources = {"the tokenizer's files": None if eos is None else tokenizer.added_token(eos)}
    if chat is not None:
        ends = named | {token for token in sources.values() if token is not None}
        sources["the chat template"] = turn_end(chat, tokenizer, ends, cache)
    # transformers gives a new id to a token that the tokenizer does not have, which the model never writes
    known = {token: source for source, token in sources.items() if token is not None and token < vocab_size}
    others = {token: source for token, source in known.items() if token not in named}
    for token, source in others.items():
        logger.debug("answers also end with %s, which only %s names", tokenizer.token_text(token), source)
    return set(others)
