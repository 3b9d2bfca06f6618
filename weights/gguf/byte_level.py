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
_ALL_DIGITS = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}+|{_signs(r'\r\n')}|{_SPACES}"
_WITH_MARKS = rf"{_CONTRACTIONS}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_GPT_4O = rf"{_by_case(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_signs(r'\r\n/')}|{_SPACES}"
_TEKKEN = rf"{_by_case('')}|\p{{N}}|{_signs(r'\r\n/')}|{_SPACES}"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NO_STOPS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CHINESE_AND_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_AFTER_SIGNS = (
    rf"[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Of the alphabets with capitals that DeepSeek LLM tells from others."""
_PUNCTUATION = r"!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How a vocabulary's text is split.

    ``expressions``: each splits the pieces that those before it leave, at the ends of its matches. ``falcon``: whether
    text is split as by Falcon.

    ``whole``: whether a piece that is a token is that token, whatever the merges. ``bos``: whether texts begin with BOS
    where the file does not say. ``composed``: whether text is brought into Unicode's form NFC.
    """

    expressions: tuple[str, ...] = (_GPT_2,)
    falcon: bool = False
    whole: bool = False
    bos: bool = False
    composed: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composed else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.falcon:
            steps.append(pre_tokenizers.Punctuation("contiguous"))
        steps += [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in self.expressions]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        if self.falcon:
            steps.append(pre_tokenizers.Digits(individual_digits=False))
            steps.append(pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"))
        return pre_tokenizers.Sequence(steps)


_DIGIT = r"\p{N}"
_LLAMA_3 = Splitting(expressions=(_THREE_DIGITS,), whole=True, bos=True)
_THREE = Splitting(expressions=(_THREE_DIGITS,))
_QWEN = Splitting(expressions=(_ONE_DIGIT,), composed=True)
_ONE = Splitting(expressions=(_ONE_DIGIT,))
_DIGITS_FIRST = Splitting(expressions=(_DIGIT, _GPT_2))
_GLM = Splitting(expressions=(_THREE_DIGITS,), whole=True)
DEFAULT = "default"
"""The splitting of a file that names none, which llama.cpp takes with a warning."""
SPLITTINGS = {
    DEFAULT: Splitting(expressions=(r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _THREE),
    **dict.fromkeys(("glm4", "glm5", "chatglm-bpe"), _GLM),
    "qwen2": _QWEN,
    "qwen35": Splitting(expressions=(_WITH_MARKS,), composed=True),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _ONE),
    "stablelm2": _QWEN,
    "tekken": Splitting(expressions=(_TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), Splitting(expressions=(_GPT_4O,))),
    "tiny_aya": Splitting(expressions=(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O)),
    "minicpm5": Splitting(expressions=(r"\p{N}{1,3}", _ALL_DIGITS), whole=True),
    "seed-coder": Splitting(expressions=(_SEED_CODER,)),
    "superbpe": Splitting(expressions=(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "deepseek-llm": Splitting(
        expressions=("[\r\n]", rf"\s?[{_LETTERS}]+", rf"\s?[{_PUNCTUATION}]+", r"\s+$", _HAN_AND_HANGUL, r"\p{N}+")
    ),
    "deepseek-v3": Splitting(expressions=(r"\p{N}{1,3}", _CHINESE_AND_JAPANESE, _AFTER_SIGNS)),
    "deepseek-coder": Splitting(expressions=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, _DIGIT)),
    "poro-chat": Splitting(expressions=(_NO_STOPS,)),
    "viking": Splitting(expressions=(_NO_STOPS, _DIGIT)),
    "falcon": Splitting(falcon=True),
    **dict.fromkeys(("gpt-2", "phi-2", "a.x-4.0", "mellum", "exaone4", "trillion", "granite-docling"), Splitting()),
    "gigachat": Splitting(),
    **dict.fromkeys(("mpt", "olmo"), Splitting(composed=True)),
    **dict.fromkeys(("refact", "smollm", "starcoder", "minerva-7b"), _DIGITS_FIRST),
    "command-r": Splitting(expressions=(_DIGIT, _GPT_2), composed=True),
}
"""By ``tokenizer.ggml.pre``."""
