"""Make the tokenizer of a GGUF file, as Hugging Face's files have it. Host only, no jax."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE, Unigram

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.text.named_templates import template_text
from jaxgen.weights.families.config_fields import REQUIRED
from jaxgen.weights.gguf.architecture import Architecture
from jaxgen.weights.gguf.byte_level import DEFAULT as UNNAMED
from jaxgen.weights.gguf.byte_level import SPLITTINGS, Splitting
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.huggingface.chat_template import DEFAULT, TOKENIZER_CONFIG, WITH_TOOLS
from jaxgen.weights.packaged.models import packaged_as

_GGML = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
"""Values of ``token_type``."""
_SPACE = "\u2581"
_TEMPLATE = "tokenizer.chat_template"
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 that leave the space behind them alone."""
_BYTE_LEVEL, _SENTENCEPIECE, _GEMMA_4 = "gpt2", "llama", "gemma4"
_NEVER = -1e6
"""The score of tokens that no text has, such as those of bytes."""
_DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""Ids of a SentencePiece vocabulary that does not name them."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file by id, and their kinds, without tokens that only pad the embedding.

    ``count``: entries in the file, including the padding.
    """

    tokens: Mapping[int, str]
    kinds: Mapping[int, int]
    count: int

    def of_kind(self, *kinds: int) -> dict[int, str]:
        return {i: token for i, token in self.tokens.items() if self.kinds[i] in kinds}


def write_tokenizer(file: GgufFile, architecture: Architecture, directory: Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json with the chat template.

    Raises ConfigError for a vocabulary of another kind, or one that splits text in a way that is not known.
    """
    model = file.fields.choice(f"{_GGML}model", REQUIRED, (_BYTE_LEVEL, _SENTENCEPIECE, _GEMMA_4))
    vocabulary = _vocabulary(file, architecture)
    try:
        tokenizer = (
            _byte_level(file, vocabulary) if model == _BYTE_LEVEL else _sentencepiece(file, architecture, vocabulary)
        )
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception
        raise ConfigError(f"{file.path}: its vocabulary makes no tokenizer: {one_line(str(error))}") from error
    stripped = architecture.strips and model == _SENTENCEPIECE
    plain = [*vocabulary.of_kind(_USER_DEFINED).values(), *(_lines(vocabulary) if model == _GEMMA_4 else ())]
    for tokens, special in ((vocabulary.of_kind(_UNKNOWN, _CONTROL).values(), True), (plain, False)):
        tokenizer.add_tokens([_added(token, special, stripped and token not in _KEEP_SPACE) for token in tokens])
    _add_ends(file, tokenizer, vocabulary)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    specials = {key: _token(file, vocabulary, name) for name, key in names.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{key: token[1] for key, token in specials.items() if token is not None},
        **_templates(file, tokenizer),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / TOKENIZER_CONFIG).write_text(text + "\n", encoding="utf-8")


def ends_of(file: GgufFile, architecture: Architecture) -> dict[str, Any]:
    """Return the fields of generation_config.json that name tokens: BOS, and all that end an answer.

    These are the tokens that the file names and, of the architecture's ``end_tokens``, the control tokens: text may
    have others, such as the tag </s> of a Gemma. Of Gemma 4, files have tokens of tool calls as user-defined ones.
    """
    tokens = file.array(f"{_GGML}tokens") or []
    kinds = file.array(f"{_GGML}token_type") or [_NORMAL] * len(tokens)
    named = {_id(file, name) for name in ("eos", "eot", "eom")} - {None}
    ending = (_CONTROL, _USER_DEFINED) if file.fields.data.get(f"{_GGML}model") == _GEMMA_4 else (_CONTROL,)
    control = (i for i, kind in enumerate(kinds[: len(tokens)]) if kind in ending)
    ends = named | {i for i in control if tokens[i] in architecture.end_tokens}
    bos = _id(file, "bos")
    return {**({} if bos is None else {"bos_token_id": bos}), **({"eos_token_id": sorted(ends)} if ends else {})}


def _lines(vocabulary: Vocabulary) -> list[str]:
    """Return the tokens that are ends of lines and no more, which a text has whole."""
    return [token for token in vocabulary.of_kind(_NORMAL).values() if token and not token.strip("\n")]


def _added(token: str, special: bool, strips: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False, rstrip=strips)


def _id(file: GgufFile, name: str) -> int | None:
    """Return the id of a special token: unknown, bos, eos, eot, eom, padding."""
    default = _DEFAULT_IDS.get(name) if file.fields.data.get(f"{_GGML}model") == _SENTENCEPIECE else None
    key = f"{_GGML}{name}_token_id"
    return default if file.fields.data.get(key) is None else file.fields.count(key, 0)


def _token(file: GgufFile, vocabulary: Vocabulary, name: str) -> tuple[int, str] | None:
    number = _id(file, name)
    if number is None:
        return None
    if number not in vocabulary.tokens:
        raise file.fields.error(f"{_GGML}{name}_token_id", f"is {number}, which is not in the vocabulary")
    return number, vocabulary.tokens[number]


def _vocabulary(file: GgufFile, architecture: Architecture) -> Vocabulary:
    tokens = _array(file, "tokens")
    kinds = _array(file, "token_type", len(tokens), [_NORMAL] * len(tokens))
    rows = file.tensors["token_embd.weight"].shape[0]
    if len(tokens) > rows:
        raise file.fields.error(f"{_GGML}tokens", f"has {len(tokens)} entries, but the embedding has {rows} rows")
    if architecture.by_position:
        # a run of spaces is written as such, but stands for the pieces of spaces that the text becomes
        tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    kept = {i: t for i, t in enumerate(tokens) if not (kinds[i] == _UNUSED and t == f"[PAD{i}]")}
    ids: dict[str, int] = {}
    for i, token in kept.items():
        if ids.setdefault(token, i) != i:
            raise file.fields.error(f"{_GGML}tokens", f"has {token!r:.80} twice, as {ids[token]} and as {i}")
    return Vocabulary(kept, {i: kinds[i] for i in kept}, len(tokens))


def _array(file: GgufFile, name: str, length: int | None = None, default: list[Any] | None = None) -> list[Any]:
    values = file.array(f"{_GGML}{name}")
    if values is None:
        if default is None:
            raise file.fields.error(f"{_GGML}{name}", "is missing; it must be an array")
        return default
    if length is not None and len(values) != length:
        raise file.fields.error(f"{_GGML}{name}", f"has {len(values)} entries, but there are {length} tokens")
    return values


def _splitting(file: GgufFile) -> Splitting:
    """Return how text is split before it is merged; a file that does not say it means llama.cpp's default."""
    if not file.fields.data.get(f"{_GGML}pre"):
        return SPLITTINGS[UNNAMED]
    return SPLITTINGS[file.fields.choice(f"{_GGML}pre", REQUIRED, tuple(SPLITTINGS))]


def _byte_level(file: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer of GPT-2's kind: bytes spelled as letters, with the file's merges."""
    splitting = _splitting(file)
    merges = _file_merges(file)
    tokens = {token: i for i, token in vocabulary.tokens.items()}
    tokenizer = Tokenizer(BPE(vocab=tokens, merges=merges, ignore_merges=splitting.whole))
    if (normalizer := splitting.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, architecture: Architecture, vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer of SentencePiece's kind, which follows the file's merges, or the scores of its tokens."""
    for name in ("remove_extra_whitespaces", "treat_whitespace_as_suffix"):
        file.fields.must_be(f"{_GGML}{name}", False)
    if file.fields.data.get(f"{_GGML}precompiled_charsmap"):
        raise file.fields.error(f"{_GGML}precompiled_charsmap", "is not supported: texts would have to be normalised")
    with_merges = file.fields.data[f"{_GGML}model"] == _GEMMA_4
    tokenizer = Tokenizer(
        _merging(file, vocabulary, _file_merges(file))
        if with_merges
        else _scored(file, architecture, vocabulary, _array(file, "scores", vocabulary.count))
    )
    spaces = normalizers.Replace(" ", _SPACE)
    decoding: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.fields.boolean(f"{_GGML}add_space_prefix", not with_merges):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _scored(
    file: GgufFile, architecture: Architecture, vocabulary: Vocabulary, scores: Sequence[float]
) -> BPE | Unigram:
    """Return the model of a file with scores: ranks of merges, which are whole numbers, or logarithms."""
    if not architecture.by_position and not all(float(scores[i]).is_integer() for i in vocabulary.tokens):
        return _unigram(file, vocabulary, scores)
    ranks = {i: i if architecture.by_position else -scores[i] for i in vocabulary.tokens}
    tokens = vocabulary.of_kind(_NORMAL, _USER_DEFINED).items()
    return _merging(file, vocabulary, _merges({token: ranks[i] for i, token in tokens}))


def _merging(file: GgufFile, vocabulary: Vocabulary, merges: list[tuple[str, str]]) -> BPE:
    """Return the model that merges neighbours."""
    ids = {token: i for i, token in vocabulary.tokens.items()}
    unknown = _token(file, vocabulary, "unknown")
    return BPE(vocab=ids, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=unknown and unknown[1])


def _unigram(file: GgufFile, vocabulary: Vocabulary, scores: Sequence[float]) -> Unigram:
    """Return the model that takes the tokens whose scores, logarithms of probabilities, have the greatest sum."""
    with_scores = vocabulary.of_kind(_NORMAL, _USER_DEFINED)
    unknown = _token(file, vocabulary, "unknown")
    of_ids = [(f"[{i}]", _NEVER) for i in range(vocabulary.count)]
    for i, token in vocabulary.tokens.items():
        of_ids[i] = (token, scores[i] if i in with_scores else _NEVER)
    return Unigram(of_ids, unk_id=unknown and unknown[0], byte_fallback=_BYTE in vocabulary.kinds.values())


def _file_merges(file: GgufFile) -> list[tuple[str, str]]:
    """Return the pairs of tokens that a file merges. Raises ConfigError if it has none."""
    pairs = (merge.partition(" ") for merge in _array(file, "merges"))
    return [(first, second) for first, _, second in pairs]


def _merges(ranks: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return all ways to make a token of two others: first those of the lowest rank, long beginnings first.

    SentencePiece merges the two neighbours whose token has the best score, whatever they are.
    """
    ranked = [
        ((rank, -cut), (token[:cut], token[cut:]))
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    return [pair for _, pair in sorted(ranked)]


def _add_ends(file: GgufFile, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Have the tokenizer put BOS before a text, and EOS behind it, if the file says so."""
    model = file.fields.data[f"{_GGML}model"]
    default = model == _SENTENCEPIECE or (model == _BYTE_LEVEL and _splitting(file).bos)
    with_bos = file.fields.boolean(f"{_GGML}add_bos_token", default)
    wanted = {
        "bos": with_bos or model == _GEMMA_4,  # whose early files say that texts do not begin with it
        "eos": file.fields.boolean(f"{_GGML}add_eos_token", False),
    }
    ends: dict[str, tuple[int, str]] = {}
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        token = _token(file, vocabulary, name)
        if token is None:
            raise file.fields.error(f"{_GGML}{name}_token_id", f"is missing, but add_{name}_token asks for it")
        ends[name] = token
    if ends:
        before, behind = ([ends[name][1]] if name in ends else [] for name in ("bos", "eos"))
        special = [(token, i) for i, token in set(ends.values())]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *behind], pair=[*before, "$A", "$B:1", *behind], special_tokens=special
        )


def _templates(file: GgufFile, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the chat template: a text, or a list of those with names where there are several."""
    templates = {DEFAULT: file.fields.data.get(_TEMPLATE)} | {
        key.removeprefix(f"{_TEMPLATE}."): value
        for key, value in file.fields.data.items()
        if key.startswith(f"{_TEMPLATE}.")
    }
    known = packaged_as(file.path)
    if known is not None and known.tool_template is not None:
        templates[WITH_TOOLS] = _begun_as_texts(template_text(known.tool_template), tokenizer)
    texts = {name: text for name, text in templates.items() if isinstance(text, str)}
    if not texts:
        return {}
    if texts.keys() == {DEFAULT}:
        return {"chat_template": texts[DEFAULT]}
    return {"chat_template": [{"name": name, "template": text} for name, text in texts.items()]}


def _begun_as_texts(template: str, tokenizer: Tokenizer) -> str:
    """Return a template whose conversations begin as the tokenizer's texts do, whatever the file's BOS token is."""
    begin = "".join(tokenizer.encode("").tokens[:1])
    return f"{{%- set bos_token = {json.dumps(begin)} %}}{template}"
