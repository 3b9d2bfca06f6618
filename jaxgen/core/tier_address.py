"""The address of a KV tier: a directory or a server. Its text has no password. Host only, no jax."""

from dataclasses import dataclass, field
from pathlib import Path

REDIS_PORT = 6379


@dataclass(frozen=True, slots=True)
class DirectoryAddress:
    """A directory, on a disk, a volume or NFS."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A server of the redis protocol. ``password``: not in its text; ``ca``, ``cert``, ``key``: files for TLS."""

    host: str
    port: int = REDIS_PORT
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class S3Address:
    """A bucket of S3, or of a server that speaks its protocol, and the beginning of its keys.

    ``endpoint``, ``region``: None: as AWS_ENDPOINT_URL and AWS_REGION say. ``ca``: a file with certificates to trust.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    ca: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


TierAddress = DirectoryAddress | RedisAddress | S3Address
