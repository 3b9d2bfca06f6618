"""--speculative-config: vLLM's keys, and one clear error for each that is wrong."""

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.speculation import NgramConfig, SuffixConfig, parse_speculation


def test_what_vllm_is_given_is_understood() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5, "prompt_lookup_min": 3}'
    wanted = NgramConfig(num_speculative_tokens=3, prompt_lookup_max=5, prompt_lookup_min=3)
    assert parse_speculation(text) == wanted
    assert parse_speculation(None) is None
    text = '{"method": "suffix", "suffix_decoding_max_tree_depth": 30, "suffix_decoding_max_spec_factor": 2}'
    suffix = parse_speculation(text)
    assert suffix == SuffixConfig(suffix_decoding_max_tree_depth=30, suffix_decoding_max_spec_factor=2)
    assert suffix.most_drafts == 30


@pytest.mark.parametrize(
    ("keys", "lookup"), [({}, (2, 5)), ({"prompt_lookup_max": 4}, (4, 4)), ({"prompt_lookup_min": 3}, (3, 3))]
)
def test_a_bound_that_is_not_given_is_the_other(keys: dict[str, int], lookup: tuple[int, int]) -> None:
    assert NgramConfig(**keys).lookup == lookup


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ngram", "is not valid JSON"),
        ('"ngram"', "must be an object, as {"),
        ("{}", "method must be 'ngram' or 'suffix', the only ones that are done, not ''"),
        ('{"model": "a/draft", "num_speculative_tokens": 3}', "method must be 'ngram' or 'suffix'"),
        *[
            (f'{{"method": "{name}", "model": "x"}}', f"the only ones that are done, not '{name}'")
            for name in ("eagle", "eagle3", "medusa", "draft_model", "mtp")
        ],
        ('{"method": "ngram", "prompt_lookup": 3}', "unknown key 'prompt_lookup'; method 'ngram' has num_spec"),
        ('{"method": ["ngram"]}', "the only ones that are done, not ['ngram']"),
        (
            '{"method": "suffix", "prompt_lookup_max": 3}',
            "unknown key 'prompt_lookup_max'; method 'suffix' has num_spec",
        ),
        ('{"method": "suffix", "suffix_decoding_max_tree_depth": 0}', "max_tree_depth must be 1 or more, not 0"),
        ('{"method": "suffix", "suffix_decoding_max_cached_requests": -1}', "requests must be 0 or more, not -1"),
        ('{"method": "suffix", "suffix_decoding_max_spec_factor": -1}', "must be a number of 0 or more, not -1"),
        ('{"method": "suffix", "suffix_decoding_max_spec_factor": NaN}', "must be a number of 0 or more, not nan"),
        ('{"method": "suffix", "suffix_decoding_min_token_prob": 1.1}', "must be a number from 0 to 1, not 1.1"),
        ('{"method": "suffix", "suffix_decoding_min_token_prob": true}', "must be a number from 0 to 1, not True"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens must be 1 or more, not 0"),
        (
            '{"method": "ngram", "num_speculative_tokens": null}',
            "num_speculative_tokens must be a whole number, not None",
        ),
        ('{"method": "ngram", "prompt_lookup_max": "4"}', "prompt_lookup_max must be a whole number, not '4'"),
        ('{"method": "ngram", "prompt_lookup_max": true}', "prompt_lookup_max must be a whole number, not True"),
        ('{"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}', "prompt_lookup_min 3 must be at most"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_speculation(text)
    assert str(refused.value).startswith("--speculative-config")
    assert says in str(refused.value)
