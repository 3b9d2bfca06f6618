"""--kv-events-config: vLLM's keys, and one clear error for each that is wrong."""

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.kv_events.config import KVEventsConfig, parse_kv_events


def test_what_vllm_is_given_is_understood() -> None:
    text = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv@a@b"}'
    assert parse_kv_events(text) == KVEventsConfig(topic="kv@a@b")


@pytest.mark.parametrize("text", [None, '{"enable_kv_cache_events": false}', '{"publisher": "null"}'])
def test_it_is_off(text: str | None) -> None:
    assert parse_kv_events(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp://*:5557", "is not valid JSON"),
        ("[]", "must be an object"),
        ('{"endpoints": "tcp://*:1"}', "unknown key 'endpoints'; there are enable_kv_cache_events, publisher"),
        ('{"endpoint": 5557}', "endpoint must be a string, not 5557"),
        ('{"endpoint": "*:5557"}', "endpoint must begin with tcp:// or ipc://"),
        ('{"replay_endpoint": "5558"}', "replay_endpoint must begin with tcp://"),
        ('{"publisher": "kafka"}', "publisher must be 'zmq' or 'null', not 'kafka'"),
        ('{"buffer_steps": 0}', "buffer_steps must be 1 or more, not 0"),
        ('{"hwm": true}', "hwm must be a number, not True"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_kv_events(text)
    assert str(refused.value).startswith("--kv-events-config")
    assert says in str(refused.value)
