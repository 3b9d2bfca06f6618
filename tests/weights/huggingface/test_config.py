"""config.json and generation_config.json to configurations, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from jaxgen.core.decoder_config import DecoderConfig, llama_config, opt_config
from jaxgen.core.decoder_parts import AttentionConfig, MLPConfig, RopeConfig
from jaxgen.core.errors import ConfigError
from jaxgen.weights.families.not_served import KNOWN, what_is_near
from jaxgen.weights.families.registry import ARCHITECTURES, HEADLESS
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_eos_token_ids, read_model_config
from jaxgen.weights.huggingface.wrappers import WRAPPERS

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "num_attention_heads": 16}
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def write(directory: Path, config: object, name: str = "config.json") -> Path:
    (directory / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return directory


def refusal(directory: Path, config: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read_model_config(ModelFiles(write(directory, config)))
    return str(caught.value)


def test_llama_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    assert read_model_config(ModelFiles(write(tmp_path, LLAMA))) == llama_config(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4,
        head_dim=8,
        max_position=2048,
        dtype="float32",
        window=None,
        norm_eps=1e-6,
        rope=RopeConfig(theta=10_000.0),
        tie_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
    )


def test_mistral_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    config = read_model_config(ModelFiles(write(tmp_path, MISTRAL)))
    assert (config.num_kv_heads, config.head_dim, config.max_position, config.windows) == (8, 2, 131_072, (4096,) * 3)


def test_opt_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    assert read_model_config(ModelFiles(write(tmp_path, OPT))) == opt_config(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4,
        head_dim=8,
        max_position=2048,
        dtype="float32",
        embed_size=32,
        activation="relu",
        pre_norm=True,
        final_norm=True,
        norm_affine=True,
        bias=True,
        tie_embeddings=True,
    )


def test_every_option_of_llama_is_read(tmp_path: Path) -> None:
    given = LLAMA | {
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 99,
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 77,
    }
    config = read_model_config(ModelFiles(write(tmp_path, given)), "float16")
    assert isinstance(config, DecoderConfig)
    assert (config.num_kv_heads, config.head_dim, config.max_position, config.norm.eps) == (2, 6, 99, 1e-3)
    assert config.attention == AttentionConfig(qkv_bias=True, out_bias=True)
    assert (config.head.tied, config.mlp) == (True, MLPConfig(up_bias=True, down_bias=True))
    assert (config.positions.ropes, config.dtype) == ((RopeConfig(theta=77.0),), "float16")


def test_every_option_of_opt_is_read(tmp_path: Path) -> None:
    given = OPT | {
        "word_embed_proj_dim": 16,
        "do_layer_norm_before": False,
        "activation_function": "gelu",
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
        "tie_word_embeddings": False,
    }
    config = read_model_config(ModelFiles(write(tmp_path, given)))
    assert isinstance(config, DecoderConfig)
    assert (config.embed_size, config.placement, config.final_norm) == (16, "post_sum", False)
    assert config.mlp == MLPConfig(gated=False, activation="gelu")
    assert (config.attention.qkv_bias, config.norm.affine, config.head.tied) == (False, False, False)
    config = read_model_config(ModelFiles(write(tmp_path, OPT | {"_remove_final_layer_norm": True})))
    assert isinstance(config, DecoderConfig)
    assert (config.placement, config.final_norm) == ("pre", False)


@pytest.mark.parametrize(
    ("architecture", "why", "nearest"),
    [
        ("OlmoHybridForCausalLM", "a recurrent state (gated delta nets)", "Olmo3ForCausalLM"),
        ("Gemma3nForConditionalGeneration", "embeddings in each layer", "Gemma3ForCausalLM"),
        ("DeepseekV32ForCausalLM", "multi-head latent attention (MLA)", "DeepseekV3ForCausalLM"),
        ("Mamba2ForCausalLM", "a recurrent state (Mamba)", "LlamaForCausalLM"),
        ("FalconMambaForCausalLM", "a recurrent state (Mamba)", "FalconForCausalLM"),
    ],
)
def test_the_nearest_model_is_named(tmp_path: Path, architecture: str, why: str, nearest: str) -> None:
    said = refusal(tmp_path, {"architectures": [architecture]})
    assert said.startswith(f"{tmp_path}/config.json: architectures is ['{architecture}'], which ")
    assert why in said
    assert said.endswith(f"is not served; the nearest that is served is {nearest}")


def test_what_is_known_not_to_be_served_is_not_served_and_its_nearest_is() -> None:
    for known in KNOWN:
        served = (*ARCHITECTURES, *WRAPPERS, *HEADLESS)
        assert known.nearest in served
        assert not [name for name in served if name.startswith(known.begins)]
        for begin in known.begins:
            name = f"{begin.removesuffix('ForCausalLM')}ForCausalLM"
            assert what_is_near(name).endswith(known.nearest), f"an entry before it fits {begin} too"


def test_every_causal_architecture_of_transformers_is_served_or_has_a_reason() -> None:
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    names = {name for one in found for name in ((one,) if isinstance(one, str) else one)}
    assert len(names) > 150
    served = (*ARCHITECTURES, *WRAPPERS, *HEADLESS)
    assert sorted(name for name in names if name not in served and not what_is_near(name)) == []


@pytest.mark.parametrize("window", [None, 16])
def test_mistral_window(tmp_path: Path, window: int | None) -> None:
    assert read_model_config(ModelFiles(write(tmp_path, MISTRAL | {"sliding_window": window}))).widest_window == window


def test_null_key_value_heads_means_all_heads(tmp_path: Path) -> None:
    assert read_model_config(ModelFiles(write(tmp_path, MISTRAL | {"num_key_value_heads": None}))).num_kv_heads == 16


ROPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
    "null scaling": (
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e5}},
    ),
    "linear": (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}},
    ),
    "llama3": (
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ),
}


@pytest.mark.parametrize("case", ROPES)
def test_old_and_new_spelling_mean_the_same(tmp_path: Path, case: str) -> None:
    old, new = ROPES[case]
    read_old = read_model_config(ModelFiles(write(tmp_path, LLAMA | old | {"torch_dtype": "bfloat16"})))
    read_new = read_model_config(ModelFiles(write(tmp_path, LLAMA | new | {"dtype": "bfloat16"})))
    assert isinstance(read_old, DecoderConfig)
    assert read_old == read_new
    assert (read_old.positions.ropes[0].theta, read_old.dtype) == (5e5, "bfloat16")


def test_llama3_rope_values(tmp_path: Path) -> None:
    config = read_model_config(ModelFiles(write(tmp_path, LLAMA | {"rope_scaling": {"rope_type": "llama3", **LLAMA3}})))
    assert isinstance(config, DecoderConfig)
    (rope,) = config.positions.ropes
    assert rope == RopeConfig(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )


def test_llama3_rope_was_made_for_the_whole_context_unless_it_says_otherwise(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", **LLAMA3}
    del scaling["original_max_position_embeddings"]
    given = LLAMA | {"rope_scaling": scaling, "max_position_embeddings": 512}
    config = read_model_config(ModelFiles(write(tmp_path, given)))
    assert isinstance(config, DecoderConfig)
    assert config.positions.ropes[0].original_max_position == 512


@pytest.mark.parametrize(("original", "context"), [(256, 1024), (32, 512), (None, 2048)])
def test_yarn_extends_the_context(tmp_path: Path, original: int | None, context: int) -> None:
    """As model cards of Qwen have it: yarn is added, and the rest is left as it was."""
    scaling = {"type": "yarn", "factor": 4.0} | (
        {} if original is None else {"original_max_position_embeddings": original}
    )
    given = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4, "max_position_embeddings": 512}
    assert read_model_config(ModelFiles(write(tmp_path, given | {"rope_scaling": scaling}))).max_position == context
    assert read_model_config(ModelFiles(write(tmp_path, given))).max_position == 512


@pytest.mark.parametrize(
    ("given", "expected"),
    [("float16", "float16"), ("torch.bfloat16", "bfloat16"), (None, "float32")],
)
def test_dtype_auto(tmp_path: Path, given: str | None, expected: str) -> None:
    assert read_model_config(ModelFiles(write(tmp_path, LLAMA | {"torch_dtype": given}))).dtype == expected


SUPPORTED = f"supported: {', '.join(ARCHITECTURES)} (docs/families.md)"
BAD_FIELDS = [
    ({"architectures": ["OtherForCausalLM"]}, f"architectures is ['OtherForCausalLM']; {SUPPORTED}"),
    ({"architectures": None}, f"architectures is None; {SUPPORTED}"),
    ({"architectures": [{}]}, f"architectures is [{{}}]; {SUPPORTED}"),
    ({"vocab_size": "100"}, "vocab_size must be a positive integer, not '100'"),
    ({"vocab_size": True}, "vocab_size must be a positive integer, not True"),
    ({"vocab_size": 0}, "vocab_size must be a positive integer, not 0"),
    ({"hidden_size": 30}, "hidden_size (30) must be a multiple of num_attention_heads (4)"),
    ({"head_dim": 7}, "head_dim must be even for rotary positions, not 7"),
    (
        {"num_key_value_heads": 3},
        "config.json: num_attention_heads (4) must be a multiple of num_key_value_heads (3)",
    ),
    (
        {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 2, "num_experts_per_tok": 9},
        "config.json: num_experts_per_tok (9) must be between 1 and the number of experts (8)",
    ),
    ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number, not 0"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a positive number, not '1e-6'"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
    ({"attention_bias": 1}, "attention_bias must be true or false, not 1"),
    ({"torch_dtype": "float64"}, "torch_dtype is 'float64'; supported: float32, bfloat16, float16"),
    ({"quantization_config": {"quant_method": "hqq"}}, "quant_method is 'hqq'; supported: awq, gptq, "),
    (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_scaling: type is 'dynamic'; supported: default, linea",
    ),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: type is 'dynamic'"),
    (
        {"rope_parameters": {"rope_type": "longrope"}},
        "rope_parameters: short_factor is missing; it must be a list of 4",
    ),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: factor is missing; it must be a positive number"),
    ({"use_other_layers": True}, "use_other_layers is True, which llama does not know: remove it if it does not"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention is not supported with rope type"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing; it must be a positive number"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling: low_freq_factor is missing"),
    ({"rope_scaling": [1]}, "rope_scaling must be an object or null, not [1]"),
    ({"rope_theta": -1.0}, "rope_theta must be a positive number, not -1.0"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FIELDS)
def test_bad_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, LLAMA | change)


def test_inverted_llama3_frequencies_are_refused(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}
    assert "low_freq_factor must be less than high_freq_factor" in refusal(tmp_path, LLAMA | {"rope_scaling": scaling})


@pytest.mark.parametrize("change", [{"activation_function": "gelu_new"}, {"enable_bias": "no"}, {"ffn_dim": 1.5}])
def test_bad_field_of_opt_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    assert f"config.json: {next(iter(change))} " in refusal(tmp_path, OPT | change)


@pytest.mark.parametrize("config", [LLAMA, MISTRAL, OPT], ids=["llama", "mistral", "opt"])
def test_missing_size_is_named_with_its_file(tmp_path: Path, config: dict[str, Any]) -> None:
    for name in config.keys() - {"architectures"}:
        rest = {key: value for key, value in config.items() if key != name}
        assert refusal(tmp_path, rest) == f"{tmp_path}/config.json: {name} is missing; it must be a positive integer"


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not valid JSON"), ("[]", "must hold a JSON object, not list"), ("[" * 100_000, "is not valid JSON")],
    ids=["cut off", "list", "deep"],
)
def test_file_that_is_no_object(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(f"{tmp_path}/config.json {message}")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(700 * 2**20)  # which takes no room on the disk
    with pytest.raises(ConfigError, match=r"config\.json has 734003200 bytes; such a file has 67108864 at most"):
        read_model_config(ModelFiles(tmp_path))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read: No such file"):
        read_model_config(ModelFiles(tmp_path))


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": None}, {"eos_token_id": [5, 6]}, {5, 6}),
        ({"eos_token_id": [2]}, {"eos_token_id": 5}, {2, 5}),
        ({"eos_token_id": 2}, {"eos_token_id": None}, {2}),
        ({}, {}, set()),
    ],
)
def test_eos_token_ids(tmp_path: Path, config: object, generation: object, expected: set[int]) -> None:
    write(tmp_path, config)
    if generation is not None:
        write(tmp_path, generation, "generation_config.json")
    assert read_eos_token_ids(tmp_path) == expected


@pytest.mark.parametrize("value", ["2", -1, [2, None], True, 2.0])
def test_bad_eos_token_id_is_named(tmp_path: Path, value: object) -> None:
    write(tmp_path, {})
    write(tmp_path, {"eos_token_id": value}, "generation_config.json")
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id must be a token id"):
        read_eos_token_ids(tmp_path)


def test_host_files_do_not_need_jax() -> None:
    names = ["huggingface.config", "packaged.tiny", "huggingface.checkpoint", "converted.manifest", "files.atomic"]
    program = "import sys; sys.modules['jax'] = None\n" + "\n".join(f"import jaxgen.weights.{name}" for name in names)
    subprocess.run([sys.executable, "-c", program], check=True)
