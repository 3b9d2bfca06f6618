"""Addresses of a KV tier: what each says, what is wrong with others, and where a password may not be."""

from pathlib import Path

import pytest

from jaxgen.core.config import EngineOptions
from jaxgen.core.errors import ConfigError
from jaxgen.core.tier_address import DirectoryAddress, RedisAddress, S3Address, TierAddress
from jaxgen.offload.tiers.kv_tier.address import check_key, tier_address
from jaxgen.terminal.urls import without_password


@pytest.mark.parametrize(
    ("tier", "found", "shown"),
    [
        ("some/dir", DirectoryAddress(Path("some/dir")), "some/dir"),
        ("file:///a%20b/c", DirectoryAddress(Path("/a b/c")), "/a b/c"),
        ("redis://cache", RedisAddress("cache"), "redis://cache:6379/0"),
        (
            "rediss://me:s%40c%2Fret@cache:7000/2",
            RedisAddress("cache", 7000, 2, "me", "s@c/ret", tls=True),
            "rediss://cache:7000/2",
        ),
        ("redis://:secret@[::1]/", RedisAddress("::1", password="secret"), "redis://[::1]:6379/0"),
        (
            f"rediss://cache?ca={__file__}&cert={__file__}&key={__file__}",
            RedisAddress("cache", tls=True, ca=__file__, cert=__file__, key=__file__),
            "rediss://cache:6379/0",
        ),
        ("s3://bucket", S3Address("bucket"), "s3://bucket"),
        (
            f"s3://bucket/a/b/?endpoint=http://127.0.0.1:9000&region=here&ca={__file__}",
            S3Address("bucket", "a/b", "http://127.0.0.1:9000", "here", __file__),
            "s3://bucket/a/b",
        ),
    ],
)
def test_an_address_is_read(tier: str, found: TierAddress, shown: str) -> None:
    assert tier_address(tier) == found
    assert str(found) == shown


def test_a_directory_and_a_password_may_come_by_their_own_flags() -> None:
    assert tier_address(None) is None
    assert tier_address(None, "redis://x") == DirectoryAddress(Path("redis://x"))
    assert tier_address("redis://me@cache", None, "secret") == RedisAddress("cache", user="me", password="secret")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "b", None), "--kv-tier and --kv-tier-dir both"),
        ((None, __file__, None), f"--kv-tier-dir {__file__} is a file"),
        ((__file__, None, None), f"--kv-tier {__file__} is a file"),
        (("", None, None), "--kv-tier is empty"),
        ((None, "", None), "--kv-tier-dir is empty"),
        (("file://host/dir", None, None), "file:///PATH"),
        (("http://host", None, None), "redis://HOST, rediss://HOST or s3://BUCKET"),
        (("redis://", None, None), "has no host"),
        (("redis://host/name", None, None), "the number of a database, not 'name'"),
        (("redis://host?ca=x", None, None), "unknown option 'ca' of the URL; only rediss://"),
        (("rediss://host?CA=x", None, None), "unknown option 'CA' of the URL; rediss:// has ca, cert, key"),
        (("rediss://host?ca=/no/such", None, None), "ca=/no/such is not a file"),
        ((f"rediss://host?cert={__file__}", None, None), "two files"),
        (("redis://me:secret@host", None, "secret"), "both have a password"),
        (("redis://me:secret/of@host", None, None), "as %XX"),
        (("redis://me:secret@host:port", None, None), "as %XX"),
        (("redis://me:secret@host:99999", None, None), "its port is a number up to 65535"),
        (("ftp://me:secret@host", None, None), "use a directory"),
        (("dir", None, "secret"), "--kv-tier-password is for"),
        ((None, None, "secret"), "--kv-tier-password is for"),
        (("s3://", None, None), "has no bucket"),
        (("s3://key:secret@bucket", None, None), "AWS_ACCESS_KEY_ID"),
        (("s3://bucket?endpoint=host:9000", None, None), "must begin with https://"),
    ],
)
def test_another_is_refused_by_one_error_without_the_password(
    arguments: tuple[str | None, str | None, str | None], words: str
) -> None:
    with pytest.raises(ConfigError) as found:
        tier_address(*arguments)
    assert words in str(found.value)
    assert "secret" not in str(found.value)


def test_a_key_is_long_and_of_a_tier() -> None:
    check_key("k" * 16, DirectoryAddress(Path("tier")))
    for key, tier, said in (
        ("k" * 15, DirectoryAddress(Path("tier")), "fewer than 16"),
        ("k" * 16, None, "is for --kv-tier"),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            check_key(key, tier)
        assert "kkk" not in str(refused.value)


def test_a_password_is_in_no_text() -> None:
    url = "redis://me:sec@ret@host/1"
    assert without_password(url) == "redis://***@host/1"
    assert without_password("some@dir") == "some@dir"
    options = EngineOptions(kv_tier=url, kv_tier_password="sec@ret")
    for text in (repr(options), repr(tier_address("redis://:secret@host")), str(tier_address("redis://:secret@host"))):
        assert "sec" not in text
