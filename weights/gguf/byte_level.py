"""How byte-level vocabularies of GGUF files split text before they merge, by ``tokenizer.ggml.pre``. Host only, no jax.

A file names the splitting; the expressions are those of the tokenizers that the models were trained with.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_case(ending: str) -> str:
    """Return words that begin with capitals, and words that end in small letters."""
    return rf"{_BEFORE}{_UPPER}*{_LOWER}+{ending}|{_BEFORE}{_UPPER}+{_LOWER}*{ending}"


def _signs(after: str) -> str:
    return rf" ?[^\s\p{{L}}\p{{N}}]+[{after}]*"


_THREE_DIGITS = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_signs(r'\r\n')}|{_SPACES}"
_ONE_DIGIT = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}|{_signs(r'\r\n')}|{_SPACES}"
_GPT_4O = rf"{_by_case(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_signs(r'\r\n/')}|{_SPACES}"
_TEKKEN = rf"{_by_case('')}|\p{{N}}|{_signs(r'\r\n/')}|{_SPACES}"


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """``expression``: what stays together; None: GPT-2's. ``digits``: whether digits are split off first.
    ``falcon``: whether text is split as by Falcon.

    ``whole``: whether a piece that is a token is that token, whatever the merges. ``bos``: whether texts begin with BOS
    where the file does not say. ``composed``: whether text is brought into Unicode's form NFC.
    """

    expression: str | None = None
    digits: bool = False
    falcon: bool = False
    whole: bool = False
    bos: bool = False
    composed: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composed else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.expression is not None:
            steps.append(pre_tokenizers.Split(Regex(self.expression), behavior="isolated"))
        if self.falcon:
            steps.append(pre_tokenizers.Punctuation("contiguous"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.expression is None))
        if self.falcon:
            steps.append(pre_tokenizers.Digits(individual_digits=False))
            steps.append(pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"))
        return pre_tokenizers.Sequence(steps)


_LLAMA_3 = Splitting(expression=_THREE_DIGITS, whole=True, bos=True)
SPLITTINGS = {
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": Splitting(expression=_ONE_DIGIT, composed=True),
    "deepseek-r1-qwen": Splitting(expression=_ONE_DIGIT),
    "tekken": Splitting(expression=_TEKKEN, whole=True, bos=True),
    "gpt-4o": Splitting(expression=_GPT_4O),
    "dbrx": Splitting(expression=_THREE_DIGITS),
    "smaug-bpe": Splitting(expression=_THREE_DIGITS),
    "chatglm-bpe": Splitting(expression=_THREE_DIGITS),
    "glm4": Splitting(expression=_THREE_DIGITS),
    "falcon": Splitting(falcon=True),
    "gpt-2": Splitting(),
    "phi-2": Splitting(),
    "mpt": Splitting(composed=True),
    "olmo": Splitting(composed=True),
    "refact": Splitting(digits=True),
    "smollm": Splitting(digits=True),
    "starcoder": Splitting(digits=True),
}
"""By ``tokenizer.ggml.pre``."""
