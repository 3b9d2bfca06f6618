"""A program from the cache is the program that was compiled; what is wrong with the cache costs time, and one line."""

import logging
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache as jax_internals
from jax._src.compiler import get_compile_options  # no public function shows them
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from jaxlib.xla_client import AutotuneCacheMode

from jaxgen.assembly.digest import program_digest
from jaxgen.core.request import TokenEvent
from jaxgen.engine.start.build import build_engine
from jaxgen.files.cache_dirs import CacheDirs, open_cache_dirs
from jaxgen.runner import autotuned_files, compilation_cache
from jaxgen.runner.compilation import num_compilations
from jaxgen.runner.compilation_cache import persistent_compilation
from tests.support.damaged_files import DAMAGES
from tests.support.engines import (
    EOS,
    LLAMA,
    engine_config,
    params_of,
    request,
    run,
)

pytestmark = pytest.mark.usefixtures("without_programs")
AUTOTUNED = "xla_gpu_per_fusion_autotune_cache_dir"
HIT, MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


@pytest.fixture
def events() -> Iterator[Counter[str]]:
    """How often JAX took a program from the cache, and wrote one."""
    counted: Counter[str] = Counter()

    def listen(event: str, **_: str | int) -> None:
        counted[event] += 1

    jax.monitoring.register_event_listener(listen)
    yield counted
    jax.monitoring.unregister_event_listener(listen)


def compute(directory: Path | None, factor: float = 2.0) -> float:
    """Compile a small program, whatever this process has compiled before, and run it."""
    jax.clear_caches()
    with persistent_compilation(directory):
        return float(jax.jit(lambda x: jnp.sin(x) * factor)(jnp.float32(1.0)))


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*-cache"))


def test_one_thread_at_a_time_is_inside(tmp_path: Path) -> None:
    """Also a second one that asks while the first has set up the cache."""
    inside, entered, leave = [0], Event(), Event()

    def enter() -> int:
        with persistent_compilation(tmp_path):
            inside[0] += 1
            entered.set()
            assert leave.wait(60)
            return inside[0]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(enter)
        assert entered.wait(60)
        second = pool.submit(enter)
        assert wait([second], timeout=0.1).not_done
        assert inside[0] == 1
        leave.set()
        assert (first.result(), second.result()) == (1, 2)
    assert jax.config.jax_compilation_cache_dir is None


def test_what_xla_measures_on_a_gpu_is_kept_beside_the_programs(tmp_path: Path) -> None:
    """Here only the options of a compilation are looked at: nothing is measured on a CPU."""
    with persistent_compilation(tmp_path):
        options = get_compile_options(num_replicas=1, num_partitions=1)
    debug = options.executable_build_options.debug_options
    assert Path(debug.xla_gpu_per_fusion_autotune_cache_dir) == tmp_path / AUTOTUNED
    assert debug.xla_gpu_experimental_autotune_cache_mode == AutotuneCacheMode.UPDATE, "read and written"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_xla_measured_is_checked_before_xla_reads_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    """XLA ends a compilation for a file that it cannot parse. On a CPU it writes none, so a test does."""
    folder = tmp_path / AUTOTUNED
    with persistent_compilation(tmp_path):
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        for name in ("one", "other"):
            (folder / f"{name}.textproto").write_text("run_time { nanos: 7 } triton { block_m: 64 }")
    whole = (folder / "one.textproto").read_bytes()
    (folder / "one.textproto").write_bytes(damage(whole))
    for warnings in (1, 0):
        caplog.clear()
        with persistent_compilation(tmp_path):
            names = [path.name for path in folder.iterdir() if path.is_file()]
            assert names == (["other.textproto"] if warnings else names)
            (folder / "one.textproto").write_bytes(b"other times " + whole)
        assert len(caplog.records) == warnings
    assert sorted(path.name for path in folder.iterdir()) == ["one.textproto", "other.textproto", "tmp"]


def test_two_processes_may_measure_one_kernel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last one's times stay, and are not taken for damage."""
    folder = tmp_path / AUTOTUNED
    with autotuned_files.checked(folder):
        with autotuned_files.checked(folder):
            folder.mkdir()
            (folder / "one").write_text("7")
        (folder / "one").write_text("8")
    with autotuned_files.checked(folder):
        assert (folder / "one").read_text() == "8"
    assert caplog.records == []


def test_an_empty_file_of_xla_is_damaged_whoever_wrote_it(tmp_path: Path) -> None:
    """As one that was not flushed to the disk."""
    (tmp_path / AUTOTUNED).mkdir()
    for name, text in (("empty", ""), ("copied", "run_time { nanos: 7 }")):
        (tmp_path / AUTOTUNED / name).write_text(text)
    with persistent_compilation(tmp_path):
        assert [path.name for path in (tmp_path / AUTOTUNED).iterdir()] == ["copied"]


def test_a_program_from_the_cache_has_the_digest_of_a_fresh_one(tmp_path: Path, events: Counter[str]) -> None:
    digests, shape = set(), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    for directory in (tmp_path, tmp_path, None):
        jax.clear_caches()
        with persistent_compilation(directory):
            program = jax.jit(lambda x: jnp.sin(x @ x).sum()).lower(shape).compile()
        digests.add(program_digest(program.as_text() or ""))
    assert events[HIT] == 1
    assert len(digests) == 1


def test_a_directory_that_was_copied_elsewhere_is_used(tmp_path: Path, events: Counter[str]) -> None:
    """Its place, which the options of each compilation name, is in no entry's name: it can be shipped to replicas."""
    value = compute(tmp_path / "one")
    names = [path.name for path in entries(tmp_path / "one")]
    (tmp_path / "one" / AUTOTUNED).mkdir(exist_ok=True)
    (tmp_path / "one" / AUTOTUNED / "some kernel.pb").write_text("its tiles")
    shutil.copytree(tmp_path / "one", tmp_path / "far" / "other")
    events.clear()
    assert compute(tmp_path / "far" / "other") == value
    assert (events[HIT], events[MISS]) == (len(names), 0)
    assert [path.name for path in entries(tmp_path / "far" / "other")] == names


@pytest.mark.full  # compiles an engine into an empty cache; the tests above have small programs
def test_a_cached_engine_gives_the_bits_of_a_fresh_one(tmp_path: Path, events: Counter[str]) -> None:
    """Tokens and log-probabilities of greedy, seeded and penalised requests; and nothing compiles after ready."""

    params = params_of(LLAMA)

    def serve(directory: Path) -> dict[str, list[TokenEvent]]:
        jax.clear_caches()
        with persistent_compilation(directory):
            engine = build_engine(LLAMA, engine_config(), params, frozenset({EOS}))
        found = run(
            engine,
            [
                request("greedy", range(3, 40), max_tokens=12, temperature=0.0, logprobs=5, prompt_logprobs=2),
                request("seeded", range(9, 20), max_tokens=12, seed=7, logprobs=5, top_p=0.9),
                request("penalised", range(5, 25), max_tokens=12, seed=3, frequency_penalty=0.7),
            ],
        )
        assert engine.stats().compilations_after_ready == 0
        return found

    fresh = serve(tmp_path)
    assert events[HIT] == 0
    assert any(path.name.startswith("jit_step-") for path in entries(tmp_path))
    written = events[MISS]
    assert serve(tmp_path) == fresh
    assert (events[HIT], events[MISS]) == (written, written)


def test_the_count_of_compilations_has_cached_programs_too(tmp_path: Path) -> None:
    """A step that is not the compiled one must show, wherever its program comes from."""

    def counted() -> int:
        before = num_compilations()
        compute(tmp_path)
        return num_compilations() - before

    assert counted() == counted() > 0


@pytest.mark.parametrize("name", ["zstd", "zstandard"])
def test_entries_have_a_checksum_whatever_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """zlib's is at its end; zstd as JAX uses it has none."""
    compressor = object()
    monkeypatch.setattr(jax_internals, name, compressor)
    value = compute(tmp_path)
    assert getattr(jax_internals, name) is compressor
    assert entries(tmp_path)
    for path in entries(tmp_path):
        assert zlib.decompress(path.read_bytes())
    assert compute(tmp_path) == value


@pytest.mark.parametrize("name", [name for name in DAMAGES if name != "longer"])  # zlib knows its end
def test_damaged_entries_are_made_anew_and_told_in_one_line(
    tmp_path: Path, events: Counter[str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    value = compute(tmp_path)
    for path in entries(tmp_path):
        path.write_bytes(DAMAGES[name](path.read_bytes()))
    events.clear()
    assert compute(tmp_path) == value
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(tmp_path) in caplog.text
    assert events[HIT] == 0
    caplog.clear()
    assert compute(tmp_path) == value
    assert events[HIT] > 0
    assert not caplog.records


def test_a_cache_that_cannot_be_written_any_more_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "cache"
    directory.write_text("a file")
    assert compute(directory) == compute(None)
    assert len(caplog.records) == 1
    assert str(directory) in caplog.text


def test_the_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute(tmp_path)
    largest = max(path.stat().st_size for path in entries(tmp_path))
    bound = 3 * largest
    monkeypatch.setitem(compilation_cache._SETTINGS, "jax_compilation_cache_max_size", bound)
    for factor in range(3, 9):
        compute(tmp_path, float(factor))
        assert sum(path.stat().st_size for path in entries(tmp_path)) <= bound


def test_jax_is_left_as_it_was(tmp_path: Path) -> None:
    before = {name: getattr(jax.config, name) for name in compilation_cache._SETTINGS}
    compute(tmp_path / "ours")
    found = entries(tmp_path / "ours")
    compute(None, 5.0)
    assert entries(tmp_path / "ours") == found
    assert jax.config.jax_compilation_cache_dir is None
    assert {name: getattr(jax.config, name) for name in compilation_cache._SETTINGS} == before


def test_a_cache_that_the_user_set_up_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    jax.config.update("jax_compilation_cache_dir", str(theirs))
    try:
        compute(tmp_path / "ours")
        assert jax.config.jax_compilation_cache_dir == str(theirs)
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        jax_cache.reset_cache()
    assert not (tmp_path / "ours").exists()


def test_folders_are_made_for_their_user_alone(tmp_path: Path) -> None:
    dirs = open_cache_dirs(tmp_path / "new" / "cache")
    for folder in (dirs.compiled, dirs.tokenizers, dirs.tuning, dirs.kernels):
        assert folder is not None
        assert folder.stat().st_mode & 0o077 == 0


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    dirs = open_cache_dirs(tmp_path / "file")
    assert dirs == CacheDirs()
    assert len(caplog.records) == 1
    assert str(tmp_path / "file") in caplog.text
