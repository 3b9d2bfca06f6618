"""Read ``config.json`` of a Hugging Face checkpoint into a DecoderConfig. Host only, no jax.

Optional fields that are absent take the defaults of transformers 5. The sizes of the model have no default: a file
without them is refused. So is one with a field that nobody knows: it may mean another computation.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import DTYPES, DType
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.families.config_fields import JsonFields, text_part
from jaxgen.weights.families.family import BOTH_WAYS, Family
from jaxgen.weights.families.not_served import what_is_near
from jaxgen.weights.families.registry import ARCHITECTURES, HEADLESS
from jaxgen.weights.files.file_names import CONFIG, GENERATION_CONFIG
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.wrappers import WRAPPERS, text_of

logger = logging.getLogger(__name__)

IGNORED = (
    # what the file is
    *("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "auto_map", "name_or_path"),
    "transformers.js_config",
    *("quantization_config", "compression_config", "language_model_only"),
    # tokens, which other files name too
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id"),
    *("tokenizer_class", "prefix", "task_specific_params", "forced_bos_token_id", "forced_eos_token_id"),
    # training
    *("initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
    *("dropout", "embedding_dropout", "resid_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("gradient_checkpointing", "use_cache", "output_attentions", "output_hidden_states", "return_dict"),
    *("classifier_dropout", "problem_type", "id2label", "label2id", "num_labels", "pretraining_tp"),
    *("torchscript", "tf_legacy_loss", "use_bfloat16", "pruned_heads", "chunk_size_feed_forward"),
    *("neftune_noise_alpha", "attn_implementation", "logits_to_keep", "num_logits_to_keep"),
    *("is_decoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder"),
    *("finetuning_task", "bad_words_ids", "remove_invalid_values", "return_dict_in_generate", "output_scores"),
    # generation, of old files
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
    *("encoder_no_repeat_ngram_size", "num_return_sequences", "begin_suppress_tokens", "suppress_tokens"),
    *("exponential_decay_length_penalty",),
)
"""Fields that change nothing in what is computed here."""


_TOKENS = re.compile(r"\w*_token_ids?|\w*_token_index|(bos|eos|eod|pad|unk|im_start|im_end)_id")
"""Fields that name tokens. Where answers end, the tokenizer's files and the chat template say too."""
_DTYPES: dict[str, DType] = {
    **dict.fromkeys(("float32", "float", "fp32", "f32"), "float32"),
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "half", "fp16", "f16"), "float16"),
}
"""By the names that torch and tools have for them, without ``torch.``"""
_CODE_OF_MODELS = "AutoModel"
"""How the names of entries of ``auto_map`` begin that are classes of models; others are of tokenizers and so on."""


def read_model_config(files: ModelFiles, dtype: Literal["auto"] | DType = "auto") -> DecoderConfig:
    """Return the configuration of a checkpoint.

    ``dtype`` "auto": the dtype that config.json names (``dtype``, or ``torch_dtype`` in the old spelling), else
    float32; that of the files where config.json has "auto" itself. Raises ConfigError for an architecture, an option
    or a value that is not supported, and for a field that is not known.
    """
    encodings_of(files)  # it refuses encodings that jaxgen cannot read
    fields = JsonFields(files.read_json(CONFIG), str(files.directory / CONFIG))
    if dtype == "auto":
        dtype = _dtype(files, fields)
    architectures = fields.data.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            return _read(ARCHITECTURES[name], name, fields, dtype)
        if isinstance(name, str) and name in WRAPPERS:
            inner, text = text_of(name, fields, files.tensor_names())
            logger.info("%s: %s is served as text only: nothing else is loaded", files.directory, name)
            return _read(ARCHITECTURES[inner], inner, text, dtype)
        if isinstance(name, str) and name in HEADLESS:
            return _read(ARCHITECTURES[HEADLESS[name]], HEADLESS[name], fields, dtype).headless()
    near = next((advice for name in names if isinstance(name, str) and (advice := what_is_near(name))), "")
    supported = f"supported: {', '.join(ARCHITECTURES)} (docs/families.md)"
    raise fields.error(
        "architectures", f"is {architectures!r}, {near}" if near else f"is {architectures!r}; {supported}"
    )


def _read(family: Family, architecture: str, fields: JsonFields, dtype: DType) -> DecoderConfig:
    try:
        described = family.read[architecture](fields, dtype)
        config = replace(described, family=family.name)
    except ConfigError as error:
        if str(error).startswith(fields.source):
            raise
        raise ConfigError(f"{fields.source}: {error}") from error  # of numbers that do not fit each other
    # transformers reads it for every decoder, and no class has it as a field
    fields.must_be("is_causal", True, BOTH_WAYS)
    _warn_of_code(fields, architecture)
    known = fields.used.union(IGNORED, family.ignored)
    for name, value in sorted(fields.data.items()):
        # A field that is off or empty asks for nothing. A test checks that every field of transformers' classes with
        # another default is known here. A name that begins with _ is a note of the library that wrote it.
        off = value in (None, False, 0, "", [], {}) or _TOKENS.fullmatch(name)
        if name not in known and not name.startswith(("_", "unsloth")) and not off:
            raise fields.error(
                name, f"is {value!r:.80}, which {family.name} does not know: remove it if it does not change the model"
            )
    return _extended(config)


def _warn_of_code(fields: JsonFields, architecture: str) -> None:
    """Log a warning if the file names a class of its own for the model: most compute what transformers' class does.

    Files of Phi-3 and Falcon name one for versions of transformers from before theirs, so they are not refused.
    """
    listed = fields.data.get("auto_map")
    entries = listed.items() if isinstance(listed, Mapping) else ()
    classes = sorted({str(value) for name, value in entries if name.startswith(_CODE_OF_MODELS)})
    if classes:
        logger.warning(
            "%s: auto_map names code of the model's own (%s), which is never run: what is computed is transformers' "
            "own %s, without what that code changes, such as attention in both directions",
            fields.source,
            ", ".join(classes),
            architecture,
        )


def _extended(config: DecoderConfig) -> DecoderConfig:
    """Return the description with the context that yarn gives, if it is longer than what the file says.

    Model cards of Qwen tell users to add yarn and to leave ``max_position_embeddings`` as it was.
    """
    ropes = (rope for rope in config.positions.ropes if rope.kind == "yarn")
    reached = (int(rope.original_max_position * rope.factor) for rope in ropes)
    return replace(config, max_position=max(config.max_position, *reached, 0))


def read_eos_token_ids(directory: Path) -> frozenset[int]:
    """Return the token ids that end a text, from generation_config.json, if it exists, and config.json together.

    Each file has an integer, a list of integers, or null; empty when neither names an id. In config.json they may be
    those of the text's part.
    """
    ids: set[int] = set()
    files = ModelFiles(directory)
    for name in (GENERATION_CONFIG, CONFIG):
        if name == GENERATION_CONFIG and not files.path(name).exists():
            continue
        fields = JsonFields(files.read_json(name), str(directory / name))
        value: Any = fields.data.get("eos_token_id")
        if value is None and (text := text_part(fields.data)) is not None:
            value = text.get("eos_token_id")
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        for token in tokens:
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise fields.error("eos_token_id", f"must be a token id, a list of them or null, not {value!r}")
            ids.add(token)
    return frozenset(ids)


def _dtype(files: ModelFiles, fields: JsonFields) -> DType:
    """Return the dtype that config.json names, for the whole model or for its text."""
    parts = (fields.data, text_part(fields.data) or {})
    name, value = next(
        ((name, value) for part in parts for name in ("dtype", "torch_dtype") if (value := part.get(name))), ("", None)
    )
    if value is None:
        return "float32"
    bare = str(value).lower().removeprefix("torch.")
    if bare == "auto":
        return _stored_dtype(files)
    if bare not in _DTYPES:
        raise fields.error(name, f"is {value!r}; supported: {', '.join(DTYPES)} (--dtype chooses another)")
    return _DTYPES[bare]


def _stored_dtype(files: ModelFiles) -> DType:
    """Return the dtype of most numbers in the files; float32 where they have none that is computed in."""
    try:
        numbers = files.stored_weights().numbers
    except ConfigError:  # what loads the weights, if anything does, says what is wrong
        return "float32"
    return next((dtype for name in numbers for dtype in DTYPES if name == dtype), "float32")
