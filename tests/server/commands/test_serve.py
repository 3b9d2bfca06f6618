"""The command and the scripts as a user runs them: a real process, a real port, real signals."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx2
import pytest
from openai import APIError, OpenAI

from jaxgen.server.cli import main
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.native import directory, native, quick_compiler
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, served, until

FLAGS = (
    "--model --served-model-name --host --port --dtype --max-model-len --token-budget --max-num-batched-tokens "
    "--max-num-seqs --block-size --num-blocks --gpu-memory-utilization --api-key --seed --cache-dir --kernels "
    "--kv-cache-dtype --kv-residency --kv-offloading-size --kv-offload-policy --kv-host-dtype --kv-offload-inputs "
    "--kv-tier --kv-tier-dir --kv-tier-password --kv-tier-key --kv-tier-size"
)


@pytest.mark.shipped
def test_serve_end_to_end() -> None:
    """The pasted curl line gets a right answer; the openai client works; SIGINT lets a stream finish."""
    with served("--seed", "0") as server:
        curl = shlex.split(server.line.split("Try: ")[1])
        assert curl[0] == "curl"
        answer = httpx2.post(curl[1], headers={"Content-Type": "application/json"}, content=curl[-1])
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == " 4821"
        base = server.url
        client = OpenAI(base_url=base, api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        stream = client.completions.create(
            model=model, prompt="a", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        pieces = iter(stream)
        next(pieces)
        server.process.send_signal(signal.SIGINT)
        rest = list(pieces)
        assert rest[-1].choices[0].finish_reason == "length"
        assert server.process.wait(120) == 0
        assert server.last().startswith("jaxgen serve: ended by SIGINT: the drain took ")
        assert server.last().endswith(" no requests were cut off")


@pytest.mark.full
def test_a_cache_in_host_memory() -> None:
    """Full: two servers start. The answers of a cache on the device, and metrics that say what was streamed."""
    body = {"model": "m", "prompt": "def main():" * 20, "max_tokens": 40, "logprobs": 2, "temperature": 0}
    answers = []
    for flags in ((), ("--kv-residency", "host", "--kv-offloading-size", "0.05", "--kv-offload-policy", "plan")):
        with served("--served-model-name", "m", "--block-size", "16", *flags) as server:
            answers.append(httpx2.post(f"{server.url}/completions", json=body, timeout=60).json()["choices"])
            metrics = httpx2.get(server.root + "/metrics").text
    assert answers[0] == answers[1]
    found = dict(re.findall(r"^jaxgen_(offload_\w+|compilations_after_ready_total)\S* (\S+)$", metrics, re.MULTILINE))
    assert float(found["compilations_after_ready_total"]) == 0
    for name in ("restored_bytes", "restore_link_seconds", "planned_restore", "predicted_seconds", "restore_seconds"):
        assert float(found[f"offload_{name}_total"]) > 0, name


@pytest.mark.full
def test_a_restarted_server_does_not_compute_a_known_prefix(tmp_path: Path) -> None:
    """Full: two servers start. One is killed; the other has its answer to the bit, and computes no whole block."""
    prompt = [10 + 7 * n % 1900 for n in range(2000)]
    body = {"model": "m", "prompt": prompt, "max_tokens": 8, "logprobs": 2, "temperature": 0}
    flags = ("--served-model-name", "m", "--max-model-len", "2040", "--kv-tier-dir", str(tmp_path / "tier"))
    blocks, answers = (len(prompt) - 1) // 64, []

    def counted(server: ServerProcess, name: str) -> float:
        metrics = httpx2.get(server.root + "/metrics").text
        found = re.search(rf"^jaxgen_{name}\S* (\S+)$", metrics, re.MULTILINE)
        assert found is not None
        return float(found[1])

    def all_are_there(server: ServerProcess) -> bool:
        return counted(server, "kv_tier_hits_total") + counted(server, "kv_tier_written_blocks_total") >= blocks

    for _ in range(2):
        with served(*flags, "--kv-offload-policy", "transfer") as server:
            assert "KV tier: at most 16.00 GiB" in server.log()
            answers.append(httpx2.post(f"{server.url}/completions", json=body, timeout=60).json())
            computed = counted(server, "prompt_tokens_total")
            until(partial(all_are_there, server))
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 64 * blocks
    assert computed == len(prompt) - 64 * blocks


@pytest.mark.full
def test_bad_gpu_kernels_leave_a_working_server(tmp_path: Path) -> None:
    """Full: two servers start. The second time a proof that hung is not made again.

    Other ends of a proof are tests/kernels/proving/test_proof.py's.
    """
    reason, said = "their proof was not done after 4 s", []
    flags = ("--cache-dir", str(tmp_path), "--single-shape")
    for _ in range(2):
        with served(*flags, module=("tests.support.fake_gpu", "hang", "4")) as server:
            answer = httpx2.post(
                f"{server.url}/completions", json={"model": "jaxgen-default", "prompt": "def ", "max_tokens": 8}
            )
            assert answer.json()["usage"]["completion_tokens"] == 8
            metrics = httpx2.get(server.root + "/metrics").text
            found = re.search(r'^jaxgen_kernels_info\{.*kernels="XLA",.*reason="(.*?)"', metrics, re.MULTILINE)
            assert found
            assert reason in found[1]
            server.process.terminate()
            server.process.wait(120)
            said.append(server.log())
    assert all(reason in log for log in said)
    assert ["proving the kernels" in log for log in said] == [True, False]


def test_new_requests_are_refused_while_draining(tmp_path: Path) -> None:
    """Of a server whose key is in the environment, and whose cache directory cannot be written, which is a warning."""
    (tmp_path / "file").write_text("")
    # Long enough that the stream outlasts the questions asked meanwhile, also on a slow machine.
    flags = ("--shutdown-timeout", "60", "--served-model-name", "m", "--max-model-len", "2048", "--single-shape")
    environment = quick_compiler(tmp_path) | {"JAXGEN_API_KEY": "secret"}
    with served(*flags, "--cache-dir", str(tmp_path / "file"), environment=environment) as server:
        base, keyed = server.url, {"Authorization": "Bearer secret"}
        with httpx2.Client(base_url=server.root, timeout=60, headers=keyed) as other:
            assert httpx2.get(f"{base}/models").status_code == 401
            assert other.get("/v1/models").status_code == 200
            assert httpx2.get(f"{server.root}/ready").status_code == 200
            server.process.send_signal(signal.SIGHUP)
            until(lambda: "SIGHUP is ignored: there is no --api-key-file and no --ssl-certfile" in server.log())
            warned = [line for line in server.log().splitlines() if "WARNING" in line]
            assert len(warned) == 1
            assert str(tmp_path / "file") in warned[0]
            client = OpenAI(base_url=base, api_key="secret", max_retries=0)
            stream = client.completions.create(
                model="m", prompt="a", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
            )
            pieces = iter(stream)
            next(pieces)
            server.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 120
            # Each time by a new connection: an idle one may be closed while a request is on its way.
            while httpx2.get(f"{server.root}/ready").status_code == 200:
                assert time.monotonic() < deadline
            refused = other.post("/v1/completions", json={"model": "m", "prompt": "a"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert other.get("/health").status_code == 503
            assert other.get("/livez").status_code == 200
            server.process.send_signal(signal.SIGTERM)  # a second one gives up what runs
            with pytest.raises(APIError, match="the server is shutting down"):
                list(pieces)
            assert server.process.wait(120) == 0
            assert server.last().startswith("jaxgen serve: ended by SIGTERM: the drain took ")
            assert server.last().endswith(" 1 request was cut off")


@pytest.mark.full
def test_a_step_that_hangs_does_not_hold_the_process() -> None:
    """Full: a server starts, and is waited for. What it was asked for is answered, and the log says what hung."""
    flags = ("--shutdown-timeout", "0.5", "--served-model-name", "m")
    with served(*flags, module=("tests.support.hung_engine",)) as server:
        with ThreadPoolExecutor() as threads:
            body = {"model": "m", "prompt": "a", "max_tokens": 200}
            answering = threads.submit(httpx2.post, f"{server.url}/completions", json=body, timeout=60)
            until(lambda: "the step hangs" in server.log())
            server.process.send_signal(signal.SIGTERM)
            assert answering.result().status_code == 503
        assert server.process.wait(60) == 1
        assert "hung_engine.py" in server.log().partition("what the threads do")[2]
        assert server.last().endswith(" 1 request was cut off, and the engine hangs")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--max-num-seqs", "9", "--token-budget", "8"], "--max-num-seqs 9"),
        (["--num-blocks", "1", "--max-model-len", "512"], "--num-blocks 1"),
        (["--max-prompts", "0"], "max_prompts"),
        (["--api-key-file", "/nonexistent/keys"], "--api-key-file /nonexistent/keys"),
        (["--chat-template", "/nonexistent/template"], "/nonexistent/template"),
        (
            ["--chat-template", "chat-ml"],
            "--chat-template chat-ml is not a file or one of the built-in templates: chatml",
        ),
        (["--host", "203.0.113.1"], "--host 203.0.113.1"),
        (["--model", "/nonexistent/model"], "/nonexistent/model"),
        (["--kv-residency", "host"], "--kv-offloading-size"),
        (["--kv-tier-dir", __file__], "is a file: name a directory"),
        (["--kv-tier-dir", ""], "--kv-tier-dir is empty"),
        (["--kv-tier", "redis://me:word@host/db"], "the number of a database, not 'db'"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *arguments]) == 2
    assert says in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_corrupt_checkpoint_is_named(tmp_path: Path) -> None:
    """Found out while loading, after the port was opened."""
    make_tiny_checkpoint(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    command = [sys.executable, "-m", "jaxgen.server.cli", "serve", "--port", "0", "--model", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert str(weights) in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.usefixtures("without_programs")
def test_what_is_kept_for_the_next_start(tmp_path: Path) -> None:
    """Full: three servers start, two of which compile.

    Programs, kernels and tokenizers in --cache-dir, no programs with --no-compilation-cache. Who starts with them gives
    the same tokens and log-probabilities.
    """
    names = {"compiled": "jit_step-*-cache", "tokenizers": "*.json"}
    native()
    shutil.copytree(directory(), tmp_path / "kernels" / "v1")  # they take long to make, which is test_cpu_library's

    def kept_and_answer(*flags: str) -> tuple[dict[str, int], object]:
        with served("--cache-dir", str(tmp_path), *flags) as server:
            body = {"model": "jaxgen-default", "prompt": "def main():", "max_tokens": 24, "logprobs": 5, "seed": 1}
            answer = httpx2.post(f"{server.url}/completions", json=body, timeout=60).json()["choices"]
        return {name: len(list(tmp_path.glob(f"{name}/*/{pattern}"))) for name, pattern in names.items()}, answer

    fresh_kept, fresh = kept_and_answer("--no-compilation-cache")
    assert fresh_kept == {"compiled": 0, "tokenizers": 1}
    first_kept, first = kept_and_answer()
    assert first_kept["compiled"] > 0
    assert kept_and_answer() == (first_kept, first)
    assert first == fresh


def test_scripts_work_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "serve"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for flag in FLAGS.split():
        assert f"{flag} " in done.stdout or f"{flag}," in done.stdout, flag


def test_a_missing_python_is_said_in_one_line(tmp_path: Path) -> None:
    """No Python that is new enough anywhere: one line tells what to install."""
    script = (ROOT / "scripts" / "ci" / "environment.sh").read_text()
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", script + "\ncreate_venv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": str(old.parent), "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "install" in done.stderr


def test_unknown_commands_are_named() -> None:
    command = [sys.executable, "-m", "jaxgen.server.cli", "sevre"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sevre" in done.stderr
    assert "serve" in done.stderr
