"""The native library: made once, proven before it is loaded, refused with a reason where anything is wrong."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from jax import ffi

from pallas_kernels.cpu import build
from pallas_kernels.cpu.build import COMPILERS, UNITS, Recipe, UnavailableError
from pallas_kernels.cpu.library import DTYPES, HANDLERS, Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.packed_product import pack
from pallas_kernels.quantized_product import GroupedCodes, pack_codes, pack_groups
from tests.support.attention_cases import Case, make_inputs, run
from tests.support.damaged_files import DAMAGES
from tests.support.native import directory, native

SOURCES = Path(build.__file__).parent
LOAD = """
import sys
from pathlib import Path
from typing import Any
from pallas_kernels.cpu.loading import load
load(Path(sys.argv[1]), compiler=sys.argv[2])
"""
ANSWER = "import sys; from tests.kernels.test_cpu_library import write_answers; write_answers(sys.argv[1])"


def compiler() -> str:
    native()  # skips where there is none
    return Recipe.find().command[0]


def script(path: Path, *lines: str) -> str:
    """A compiler of our own: a shell script that knows its version and finds the output file in ``$target``."""
    real = f'real={compiler()}; [ "$1" = --version ] && exec $real --version; for target; do :; done'
    path.write_text("\n".join(["#!/bin/sh", real, *lines]))
    path.chmod(0o700)
    return str(path)


def test_it_is_made_once() -> None:
    first = native()
    (path,) = directory().glob("*.so")
    made = path.stat()
    assert load(directory()) == first
    assert path.stat() == made
    assert first.digest in path.name


def test_every_source_file_is_compiled_and_decides_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(UNITS) == {path.name for path in SOURCES.glob("*.cc")}
    before = Recipe.find(compiler()).digest
    copy = tmp_path / "sources"
    shutil.copytree(SOURCES, copy)
    monkeypatch.setattr(build, "_SOURCES", copy)
    assert Recipe.find(compiler()).digest == before
    for path in [*copy.glob("*.cc"), *copy.glob("*.h")]:
        kept = path.read_text()
        path.write_text(kept + "// another")
        assert Recipe.find(compiler()).digest != before, path.name
        path.write_text(kept)


def test_source_files_compile_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the others to have begun."""
    begun, steps = tmp_path / "begun", list[int]()
    begun.mkdir()
    (made,) = directory().glob("*.so")
    met = f'[ "$(ls {begun} | wc -l)" -ge {len(UNITS)} ]'
    wait = f"for _ in $(seq 3000); do {met} && break; sleep 0.01; done; {met} || exit 1"
    meeting = script(
        tmp_path / "meeting",
        f'case "$target" in *.o) touch {begun}/$(basename "$target"); {wait};; esac',
        f'cp {made} "$target"',
    )

    def watch(total: int) -> AbstractContextManager[Callable[[int], object]]:
        steps.append(total)
        return nullcontext(steps.append)

    load(tmp_path / "kernels", compiler=meeting, threads=len(UNITS), watch=watch)
    assert steps == [len(UNITS) + 1, *[1] * (len(UNITS) + 1)]
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".so"]


def test_two_processes_may_make_it_at_once(tmp_path: Path) -> None:
    compiler()
    (made,) = directory().glob("*.so")
    quick = script(tmp_path / "quick", f'cp {made} "$target"')
    kernels = tmp_path / "kernels"
    both = [subprocess.Popen([sys.executable, "-c", LOAD, str(kernels), quick]) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert [path.suffix for path in kernels.iterdir()] == [".so"]


@pytest.mark.parametrize("damage", ["cut", "another bit"])
def test_a_damaged_library_is_made_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that was cut short would end the process by SIGBUS. Other damages are those of any kept file."""
    compiler()
    (made,) = directory().glob("*.so")
    quick = script(tmp_path / "quick", f'cp {made} "$target"')
    kernels = tmp_path / "kernels"
    load(kernels, compiler=quick)
    (path,) = kernels.iterdir()
    whole = path.read_bytes()
    path.unlink()  # it is loaded here: only a new file may have other contents
    path.write_bytes(DAMAGES[damage](whole))
    load(kernels, compiler=quick)
    assert path.read_bytes() == whole
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert f"{path} is damaged" in said
    caplog.clear()
    load(kernels, compiler=quick)
    assert not caplog.records


def test_every_handler_has_the_librarys_name() -> None:
    """A compiled program that was stored with one library cannot run with another."""
    library = native()
    cache, kv = jnp.zeros((2, 1, 2, 1, 4, 8)), jnp.zeros((3, 1, 8))
    program = jax.jit(library.write_kv).lower(cache, jnp.int32(0), kv, kv, jnp.arange(3))
    assert library.digest in program.as_text()
    other = Library("another")
    assert len({one._target(handler) for one in (library, other) for handler in HANDLERS}) == 2 * len(HANDLERS)


def test_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no C"):
        load(tmp_path, compiler="no-such-compiler")


def test_a_failed_build_gives_the_compilers_words(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", "echo 'no such instruction' >&2; exit 1")
    with pytest.raises(UnavailableError, match="no such instruction"):
        load(tmp_path / "kernels", compiler=broken)
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_compilers_error_is_given_however_much_it_says_after_it(tmp_path: Path) -> None:
    lines = (
        "echo 'a.h:1:2: error: no such type' >&2",
        "for i in 1 2 3 4; do echo 'a.h:1: note: see' >&2; done",
        "exit 1",
    )
    with pytest.raises(UnavailableError, match=r"status 1: a\.h:1:2: error: no such type$"):
        load(tmp_path / "kernels", compiler=script(tmp_path / "broken", *lines))


def test_a_library_that_crashes_is_not_loaded(tmp_path: Path) -> None:
    source = " ".join(f'extern "C" void {handler}() {{ __builtin_trap(); }}' for handler in HANDLERS)
    crashing = script(tmp_path / "crashing", f"echo '{source}' | $real -shared -fPIC -x c++ - -o \"$target\"")
    with pytest.raises(UnavailableError, match="ended with status -"):
        load(tmp_path / "kernels", compiler=crashing)
    assert list((tmp_path / "kernels").iterdir()) == []


NOTHING = """#include "xla/ffi/api/ffi.h"
using namespace xla::ffi;
static Error Nothing(RemainingArgs, RemainingRets, Dictionary) { return Error::Success(); }
XLA_FFI_DEFINE_HANDLER_SYMBOL(nothing, Nothing, Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
"""


def test_a_library_that_computes_nothing_is_not_loaded(tmp_path: Path) -> None:
    source = tmp_path / "nothing.cc"
    alias = 'extern "C" XLA_FFI_Error* {}(XLA_FFI_CallFrame*) __attribute__((alias("nothing")));\n'
    source.write_text(NOTHING + "".join(map(alias.format, HANDLERS)))  # all by one: to compile each takes long
    made = tmp_path / "nothing.so"
    flags = ("-std=c++17", "-shared", "-fPIC", "-isystem", ffi.include_dir())
    subprocess.run([compiler(), *flags, str(source), "-o", str(made)], check=True)  # once, not for each file of sources
    wrong = script(tmp_path / "wrong", f'cp {made} "$target"')
    with pytest.raises(UnavailableError, match="wrong"):
        load(tmp_path / "kernels", compiler=wrong)
    assert list((tmp_path / "kernels").iterdir()) == []


@pytest.mark.full  # all that is compiled, for one wrong number; the test above is of one that is all wrong
def test_a_library_that_miscalculates_is_not_loaded(tmp_path: Path) -> None:
    """One coefficient of the exponential function is off."""
    copy = tmp_path / "sources"
    copy.mkdir()
    for path in SOURCES.glob("*.[ch]*"):
        (copy / path.name).write_text(path.read_text().replace("Broadcast(0.5f)", "Broadcast(0.4f)"))
    lines = (f'for argument; do shift; set -- "$@" "$(echo "$argument" | sed \'s,^{SOURCES},{copy},\')"; done',)
    wrong = script(tmp_path / "wrong", *lines, 'exec $real "$@" -O1')  # the wrong number needs no more
    with pytest.raises(UnavailableError, match="wrong by"):
        load(tmp_path / "kernels", compiler=wrong)
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_directory_that_others_write_is_refused(tmp_path: Path) -> None:
    compiler()
    tmp_path.chmod(0o777)
    with pytest.raises(UnavailableError, match="written by others"):
        load(tmp_path)


def test_a_directory_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    compiler()
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="file"):
        load(tmp_path / "file" / "directory")


@pytest.mark.parametrize("changed", ["processor", "run"])
def test_another_machine_or_compiler_has_another_library(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = Path(compiler()).name
    before = Recipe.find(name)
    monkeypatch.setattr(build, changed, lambda *_, **__: "another")
    assert Recipe.find(name).digest != before.digest
    assert name in COMPILERS


def write_answers(path: str) -> None:
    """What the kernels compute, and how many threads there are, to a file."""
    arrays = {}
    for dtype in DTYPES:
        case = Case(rows=((1, 300), (1, 20), (90, 130), (40, 40)), heads=6, head_dim=64, dtype=dtype)
        arrays[f"attention {dtype}"] = run(native().ragged_paged_attention, case, make_inputs(case))
        x, weight = (jax.random.normal(jax.random.key(0), shape, dtype) for shape in ((70, 300), (1, 700, 300)))
        y = native().packed_product(x, pack(weight), jnp.int32(0), jnp.int32(70), out_features=700)
        arrays[f"product {dtype}"] = np.asarray(y)
        codes = jax.random.bits(jax.random.key(0), (1, 700, 300), "uint8")
        quantized = GroupedCodes(pack_codes(codes, bits=8), pack_groups(weight[..., :1]))
        y = native().quantized_product(
            x, quantized, jnp.int32(0), jnp.int32(70), bits=8, group=300, out_features=700, dtype=dtype
        )
        arrays[f"quantized product {dtype}"] = np.asarray(y)
    arrays["threads"] = np.asarray(psutil.Process().num_threads())
    np.savez(path, allow_pickle=False, **arrays)


def environment(threads: int) -> dict[str, str]:
    """XLA's pool has so many threads; tests/conftest.py sets the second variable."""
    return dict(os.environ) | dict.fromkeys(("NPROC", "PJRT_NPROC"), str(threads))


def test_the_number_of_threads_changes_no_bit(tmp_path: Path) -> None:
    native()
    answers = []
    for threads in (1, 7):
        path = tmp_path / f"{threads}.npz"
        subprocess.run([sys.executable, "-c", ANSWER, str(path)], env=environment(threads), check=True)
        answers.append(dict(np.load(path)))
    one, many = answers
    assert one.pop("threads") < many["threads"]
    for name, array in one.items():
        np.testing.assert_array_equal(array, many[name], err_msg=name)


@pytest.mark.parametrize("shape", [(0,), (3,), (1025,), (3, 1 << 20)])
@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.bfloat16, jnp.int32])
def test_zeros_are_zeros_where_other_numbers_were(shape: tuple[int, ...], dtype: Any) -> None:
    jnp.ones(shape, dtype).delete()  # its memory is likely to be taken next
    found = native().zeros(shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert not np.asarray(found).any()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory is resident")
def test_zeros_take_memory_only_where_they_are_written() -> None:
    process, size = psutil.Process(), 1 << 28
    native().zeros((1,), jnp.int8).block_until_ready()
    before = process.memory_info().rss
    zeros = native().zeros((size,), jnp.int8).block_until_ready()
    assert process.memory_info().rss - before < size // 8
    written = jax.jit(lambda x: x.at[: size // 2].set(1), donate_argnums=0)(zeros).block_until_ready()
    assert process.memory_info().rss - before >= size // 2
    written.delete()
