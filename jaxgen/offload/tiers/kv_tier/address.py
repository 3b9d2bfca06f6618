"""Parse the flags that name a KV tier, and keep its password out of what is printed."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from jaxgen.core.errors import ConfigError, check_path
from jaxgen.core.tier_address import REDIS_PORT, DirectoryAddress, RedisAddress, S3Address, TierAddress
from jaxgen.terminal.urls import without_password

FLAG = "--kv-tier"
LEAST_KEY_BYTES = 16


def tier_address(
    tier: str | None, directory: Path | str | None = None, password: str | None = None
) -> TierAddress | None:
    """Return the address that --kv-tier, --kv-tier-dir and --kv-tier-password give; None: they name no tier.

    Raises ConfigError, which has no password.
    """
    if tier is not None and directory is not None:
        raise ConfigError(f"{FLAG} and --kv-tier-dir both name a KV tier: drop one of the two")
    if directory is not None:
        address: TierAddress | None = _directory("--kv-tier-dir", directory)
    else:
        address = None if tier is None else _parse(tier, password)
    if password is not None and not isinstance(address, RedisAddress):
        raise ConfigError(f"--kv-tier-password is for {FLAG} redis://HOST or rediss://HOST: drop it, or name a server")
    return address


def check_key(key: str, tier: TierAddress | None) -> None:
    """Raise ConfigError, which does not have the key, for a --kv-tier-key that is too short or is of no tier."""
    if tier is None:
        raise ConfigError(f"--kv-tier-key is for {FLAG} or --kv-tier-dir: name a KV tier, or drop it")
    if len(key.encode()) < LEAST_KEY_BYTES:
        raise ConfigError(f"--kv-tier-key has fewer than {LEAST_KEY_BYTES} bytes: make one by `openssl rand -hex 32`")


def _parse(tier: str, password: str | None) -> TierAddress:
    scheme, separator, _ = tier.partition("://")
    if not separator:
        return _directory(FLAG, tier)
    try:
        url = urlsplit(tier)
        port = url.port
    except ValueError:  # its message may have the password in it
        raise ConfigError(
            f"{FLAG} {without_password(tier)} is not a valid URL: its port is a number up to 65535, and in a user or a "
            "password characters other than letters and digits are written as %XX"
        ) from None
    if scheme == "file":
        if url.netloc or not url.path.strip("/"):
            raise ConfigError(f"{FLAG} {without_password(tier)}: write a directory as file:///PATH, or as its path")
        return _directory(FLAG, unquote(url.path))
    if scheme in ("redis", "rediss"):
        return _redis(url, port, password)
    if scheme == "s3":
        return _s3(url)
    raise ConfigError(f"{FLAG} {without_password(tier)}: use a directory, redis://HOST, rediss://HOST or s3://BUCKET")


def _directory(flag: str, path: Path | str) -> DirectoryAddress:
    check_path(flag, path)
    if not str(path) or Path(path).is_file():
        raise ConfigError(f"{flag} {path} is a file: name a directory" if str(path) else f"{flag} is empty: name one")
    return DirectoryAddress(Path(path))


def _redis(url: SplitResult, port: int | None, password: str | None) -> RedisAddress:
    if not url.hostname:
        raise ConfigError(f"{FLAG} {url.scheme}:// has no host: write {url.scheme}://HOST")
    number = url.path.strip("/") or "0"
    if not number.isdecimal():
        raise ConfigError(f"{FLAG}: the path of a redis URL is the number of a database, not {number!r}")
    tls = url.scheme == "rediss"
    options = _options(url, {"ca", "cert", "key"} if tls else set())
    for name in ("ca", "cert", "key"):
        _require_file(name, options.get(name))
    if ("cert" in options) != ("key" in options):
        raise ConfigError(f"{FLAG}: a client's certificate needs two files, ?cert=FILE&key=FILE")
    if url.password is not None and password is not None:
        raise ConfigError(f"{FLAG} and --kv-tier-password both have a password: drop one of the two")
    return RedisAddress(
        url.hostname,
        port or REDIS_PORT,
        int(number),
        unquote(url.username) if url.username else None,
        unquote(url.password) if url.password else password,
        tls,
        **options,
    )


def _s3(url: SplitResult) -> S3Address:
    if "@" in url.netloc:
        raise ConfigError(
            f"{FLAG} s3://: credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, not the URL"
        )
    if not url.netloc:
        raise ConfigError(f"{FLAG} s3:// has no bucket: write s3://BUCKET or s3://BUCKET/PREFIX")
    options = _options(url, {"ca", "endpoint", "region"})
    _require_file("ca", options.get("ca"))
    endpoint = options.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{FLAG}: endpoint={endpoint} must begin with https:// or http://")
    return S3Address(url.netloc, unquote(url.path).strip("/"), **options)


def _options(url: SplitResult, known: set[str]) -> Mapping[str, str]:
    """Return what follows the URL's question mark. Raises ConfigError for names that are not known."""
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    for name in options:
        if name not in known:
            may = f"{url.scheme}:// has {', '.join(sorted(known))}" if known else "only rediss:// has ca, cert and key"
            raise ConfigError(f"{FLAG}: unknown option {name!r} of the URL; {may}")
    return options


def _require_file(name: str, path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"{FLAG}: {name}={path} is not a file: name one in PEM format")
