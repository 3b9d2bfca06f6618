"""Servers with a KV tier on a real redis-server, by TLS and as a user with few rights, and on moto's S3.

What an earlier server answered comes back with the same bits, and whatever the tier does, answers stay the same.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import boto3
import pytest
import trustme

from tests.clients.conftest import ROOT, post

pytestmark = pytest.mark.clients
PASSWORD = "pass/word@1"
RIGHTS = "+getrange +pexpire +exists +expire +set +unlink +scan +pttl +strlen"
"""What docs/offload.md says that the user needs."""
BLOCK = 64
NUM_BLOCKS = 10


def prompt(n: int) -> list[int]:
    """Token ids of NUM_BLOCKS whole blocks and one more token."""
    return [10 + (7 * i + 113 * n) % 1900 for i in range(NUM_BLOCKS * BLOCK + 1)]


class Server:
    """``jaxgen serve`` with a KV tier that is always asked."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def answer(self, n: int) -> Any:
        """The answer to the prompt of this number, whose log-probabilities show every bit."""
        body = {"model": "m", "prompt": prompt(n), "max_tokens": 4, "logprobs": 2, "temperature": 0}
        found = post(f"{self.url}/v1/completions", body)
        return found["choices"], found["usage"]["prompt_tokens_details"]["cached_tokens"]

    def text(self, path: str) -> str:
        with urlopen(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def count(self, name: str) -> float:
        found = re.search(rf"^jaxgen_kv_tier_{name}_total\S* (\S+)$", self.text("/metrics"), re.MULTILINE)
        assert found
        return float(found[1])

    def has_written(self, blocks: int) -> bool:
        return self.count("written_blocks") >= blocks


@pytest.fixture
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    python = request.config.getoption("--server-python").absolute()

    @contextmanager
    def served(tier: str, *flags: str, size: float = 1.0, **environment: str) -> Iterator[Server]:
        log = tmp_path / f"{time.monotonic_ns()}.log"
        command = [str(python), "-m", "jaxgen.server.cli", "serve", "--port", "0", "--served-model-name", "m"]
        command += ["--max-model-len", "1000", "--block-size", str(BLOCK), "--kv-offload-policy", "transfer"]
        command += ["--kv-tier", tier, "--kv-tier-size", str(size), *flags]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment}
            )
        try:
            assert process.stdout is not None
            found = re.search(r"(http://[\d.:]+)/v1", process.stdout.readline())
            assert found, log.read_text()[-3000:]
            yield Server(process, found[1], log)
        finally:
            process.kill()
            process.communicate()

    return served


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Redis:
    """A redis-server that speaks TLS alone, to users with passwords; ``admin`` comes by a socket in the file system."""

    def __init__(self, folder: Path) -> None:
        for program in ("redis-server", "redis-cli"):
            assert shutil.which(program), f"{program} is missing: install it (apt-get install redis-server)"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        self._folder, self.port = folder, free_port()
        self.url = f"rediss://jaxgen@127.0.0.1:{self.port}/0?ca={folder}/ca.pem"
        settings = {
            "port": "0",
            "tls-port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": f"{folder}/socket",
            "tls-cert-file": f"{folder}/cert.pem",
            "tls-key-file": f"{folder}/key.pem",
            "tls-auth-clients": "no",
            "tls-ca-cert-file": f"{folder}/ca.pem",
            "save": '""',
            "dir": str(folder),
            "maxmemory-policy": "noeviction",
        }
        users = ("default off", "admin on >admin ~* +@all", f"jaxgen on >{PASSWORD} ~jaxgen:kv1:* -@all {RIGHTS}")
        lines = [f"{name} {value}" for name, value in settings.items()] + [f"user {user}" for user in users]
        (folder / "redis.conf").write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(["redis-server", f"{folder}/redis.conf"], stdout=subprocess.DEVNULL)
        until(lambda: (folder / "socket").exists(), 20)

    def ask(self, *command: str) -> str:
        arguments = [
            "redis-cli",
            "-s",
            f"{self._folder}/socket",
            "--user",
            "admin",
            "--pass",
            "admin",
            "--no-auth-warning",
        ]
        done = subprocess.run([*arguments, *command], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.strip()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = Redis(folder)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of moto's server, and its process; the bucket is there."""
    port = free_port()
    with (tmp_path / "moto.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"

    def makes_bucket() -> bool:
        try:
            return bool(urlopen(Request(f"{address}/bucket", method="PUT"), timeout=60).status == 200)
        except URLError:
            return False

    until(makes_bucket)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    yield address, process
    process.kill()
    process.wait()


def says_no_secret(server: Server) -> None:
    for text in (server.log, server.text("/metrics"), server.text("/capabilities"), server.text("/version")):
        for secret in (PASSWORD, PASSWORD.replace("/", "%2F").replace("@", "%40"), "some-key"):
            assert secret not in text


def fill(serve: Callable[..., Any], tier: str, prompts: int, **environment: str) -> list[Any]:
    """The answers of a server that is killed once its blocks are in the tier."""
    with serve(tier, **environment) as server:
        answers = [server.answer(n) for n in range(prompts)]
        assert all(cached == 0 for _, cached in answers)
        until(lambda: server.has_written(prompts * NUM_BLOCKS))
        says_no_secret(server)
        server.process.kill()
    return [answer for answer, _ in answers]


def test_redis_and_what_may_happen_to_it(serve: Callable[..., Any], redis: Redis) -> None:
    expected = fill(serve, redis.url, 5, JAXGEN_KV_TIER_PASSWORD=PASSWORD)
    assert int(redis.ask("DBSIZE")) == 5 * NUM_BLOCKS
    whole = NUM_BLOCKS * BLOCK
    with serve(redis.url, JAXGEN_KV_TIER_PASSWORD=PASSWORD) as server:
        redis.ask("CONFIG", "RESETSTAT")
        assert server.answer(0) == (expected[0], whole)
        calls = redis.ask("INFO", "commandstats")
        assert f"cmdstat_getrange:calls={NUM_BLOCKS}," in calls, calls
        assert server.count("errors") == server.count("damaged_blocks") == 0

        # A value that is not what was written: computed again.
        names = redis.ask("KEYS", "jaxgen:kv1:*").split()[::2]
        for name in names:
            redis.ask("COPY", name, f"copy:{name}")
            redis.ask("SETRANGE", name, "100", "damaged")
        answer, cached = server.answer(1)
        assert (answer, cached < whole, server.count("damaged_blocks") > 0) == (expected[1], True, True)
        assert server.count("errors") == 0
        for name in names:
            redis.ask("RENAME", f"copy:{name}", name)

        # A full one: nothing more is written, and what is there is read.
        redis.ask("CONFIG", "SET", "maxmemory", "1mb")
        server.answer(100)
        until(lambda: server.count("errors") == 1)
        assert "nothing is written to the KV tier rediss://127.0.0.1" in server.log
        assert server.answer(4) == (expected[4], whole)

        # One that does not answer: one wait of a bounded time.
        redis.process.send_signal(signal.SIGSTOP)
        assert server.answer(2) == (expected[2], 0)
        assert server.answer(101)[1] == 0
        assert server.count("timeouts") == 1
        redis.process.send_signal(signal.SIGCONT)
        until(lambda: server.count("read_blocks") >= 2 * NUM_BLOCKS)
        time.sleep(1)  # its late answer is noted
        assert server.answer(3) == (expected[3], whole)

        # A dead one.
        redis.process.kill()
        redis.process.wait()
        errors = server.count("errors")
        assert server.answer(5)[1] == 0
        assert server.count("errors") == errors + 1
        assert "nothing is read from the KV tier rediss://127.0.0.1" in server.log
        says_no_secret(server)


def test_redis_refuses_a_wrong_password_is_refused_by_its_certificate_and_holds_a_size(
    serve: Callable[..., Any], redis: Redis, tmp_path: Path
) -> None:
    with serve(redis.url, JAXGEN_KV_TIER_PASSWORD="wrong-one") as server:
        assert "which failed" in server.log
        assert server.answer(0)[1] == 0
        assert "wrong-one" not in server.log
        assert redis.ask("DBSIZE") == "0"
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    untrusted = redis.url.partition("?")[0] + f"?ca={stranger}"
    with serve(untrusted, JAXGEN_KV_TIER_PASSWORD=PASSWORD) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in server.log
        assert server.answer(0)[1] == 0
        assert redis.ask("DBSIZE") == "0"
    with serve(redis.url, JAXGEN_KV_TIER_PASSWORD=PASSWORD) as server:
        server.answer(0)
        until(lambda: server.has_written(NUM_BLOCKS))
        assert int(redis.ask("DBSIZE")) == NUM_BLOCKS
        name = redis.ask("RANDOMKEY")
        value = int(redis.ask("STRLEN", name))
        assert 6 * 24 * 3600 < int(redis.ask("TTL", name)) <= 7 * 24 * 3600
    with serve(redis.url, size=15 * value / 2**30, JAXGEN_KV_TIER_PASSWORD=PASSWORD) as server:
        for n in (1, 2):
            server.answer(n)
        until(lambda: server.has_written(2 * NUM_BLOCKS))
        assert NUM_BLOCKS <= int(redis.ask("DBSIZE")) <= 15


def test_s3_and_what_may_happen_to_it(serve: Callable[..., Any], s3: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, process = s3
    tier = f"s3://bucket/some/prefix?endpoint={address}&region=us-east-1"
    expected, whole = fill(serve, tier, 3), NUM_BLOCKS * BLOCK
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
    names = [one["Key"] for one in client.list_objects_v2(Bucket="bucket")["Contents"]]
    assert len(names) == 3 * NUM_BLOCKS
    assert all(re.fullmatch(r"some/prefix/jaxgen-kv-v1/[0-9a-f]{2}/[0-9a-f]{30}", name) for name in names)
    with serve(tier) as server, serve(tier) as other:
        assert server.answer(0) == (expected[0], whole)
        assert other.answer(0) == (expected[0], whole)
        assert server.count("errors") == server.count("damaged_blocks") == 0
        for name in names:
            client.put_object(Bucket="bucket", Key=name, Body=b"damaged")
        assert server.answer(1) == (expected[1], 0)
        assert server.count("damaged_blocks") == 1
        process.kill()
        process.wait()
        assert server.answer(2) == (expected[2], 0)
        assert "nothing is read from the KV tier s3://bucket/some/prefix" in server.log
        assert server.count("errors") <= 2, "a read, and a write"
        says_no_secret(server)
        assert json.loads(server.text("/capabilities"))
