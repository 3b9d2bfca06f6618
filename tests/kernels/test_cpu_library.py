"""The native libraries: each made once, proven before it is loaded, refused with a reason where anything is wrong."""

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
from pallas_kernels.cpu.build import COMPILERS, Recipe, UnavailableError
from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.cpu.parts import CONVOLUTION, ELEMENTS, GATED_DELTA, PARTS
from pallas_kernels.packed_product import pack
from pallas_kernels.quantized_product import GroupedCodes, pack_codes, pack_groups
from tests.support.attention_cases import Case, make_inputs, run
from tests.support.damaged_files import DAMAGES
from tests.support.native import compiler_script, copy_library, directory, native

SOURCES = Path(build.__file__).parent
LOAD = """
import sys
from pathlib import Path
from typing import Any
from pallas_kernels.cpu.loading import load
load(Path(sys.argv[1]), parts=sys.argv[3:], compiler=sys.argv[2])
"""
ANSWER = "import sys; from tests.kernels.test_cpu_library import write_answers; write_answers(sys.argv[1])"


def compiler() -> str:
    native()  # skips where there is none
    return Recipe.find().command[0]


EXPERTS = "float32-experts"
"""A part that is compiled and proven fast."""
UNITS = {unit.source for part in PARTS.values() for unit in part.units}


def steps_of(shown: list[int]) -> Callable[[int], AbstractContextManager[Callable[[int], object]]]:
    """A ``watch`` that notes the number of steps, and each that is done."""

    def watch(total: int) -> AbstractContextManager[Callable[[int], object]]:
        shown.append(total)
        return nullcontext(shown.append)

    return watch


def test_each_is_made_once() -> None:
    first = native()
    made = {path.name: path.stat() for path in directory().glob("*.so")}
    assert load(directory()) == first
    assert {path.name: path.stat() for path in directory().glob("*.so")} == made
    assert {f"kernels-{part}-{digest}.so" for part, digest in first.digests} <= set(made)


def test_only_the_parts_that_are_missing_are_made(tmp_path: Path) -> None:
    quick, shown = compiler_script(tmp_path / "quick", copy_library()), list[int]()
    kernels = tmp_path / "kernels"
    one = load(kernels, parts=(ELEMENTS,), compiler=quick, watch=steps_of(shown))
    assert [name for name, _ in one.digests] == [ELEMENTS]
    assert shown == [2, 1, 1]
    assert len(list(kernels.iterdir())) == 1
    both = load(kernels, parts=(EXPERTS, ELEMENTS), compiler=quick, watch=steps_of(shown))
    assert set(both.digests) > set(one.digests)
    assert shown == [2, 1, 1] * 2
    assert one.code != both.code
    assert one.zeros((2,), "int32").tolist() == [0, 0]
    with pytest.raises(ValueError, match=f"kernels of {EXPERTS} are not loaded, but ..{ELEMENTS}"):
        one.expert_product(
            jnp.zeros((1, 4)), jnp.zeros((1, 1, 1, 4, 16, 1)), jnp.int32(0), jnp.zeros(2, "int32"), out_features=1
        )


def test_a_part_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """What is proven is kept, whatever else the model needs."""
    lines = 'case "$*" in *experts.cc*) echo "no such register" >&2; exit 1; esac', copy_library()
    half = compiler_script(tmp_path / "half", *lines)
    kernels = tmp_path / "kernels"
    with pytest.raises(UnavailableError, match="no such register"):
        load(kernels, parts=(ELEMENTS, EXPERTS), compiler=half, threads=2)
    assert {path.suffix for path in kernels.iterdir()} <= {".so"}
    load(kernels, parts=(ELEMENTS,), compiler=half)


def test_every_source_file_is_compiled_and_decides_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert {path.name for path in SOURCES.glob("*.cc")} == UNITS
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


def test_sources_that_change_meanwhile_give_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = shutil.copytree(build._SOURCES, tmp_path / "sources")
    monkeypatch.setattr(build, "_SOURCES", copy)
    edited = compiler_script(tmp_path / "edited", f"echo '//' >> {copy / 'zeros.h'}", copy_library())
    with pytest.raises(UnavailableError, match="sources of the native kernels changed while they were compiled"):
        load(tmp_path / "kernels", parts=(ELEMENTS,), compiler=edited)
    assert list((tmp_path / "kernels").iterdir()) == []


def test_source_files_compile_at_the_same_time(tmp_path: Path) -> None:
    """Those of all parts: each waits for the others to have begun."""
    begun, shown, parts = tmp_path / "begun", list[int](), (ELEMENTS, EXPERTS)
    begun.mkdir()
    units = sum(len(PARTS[part].units) for part in parts)
    met = f'[ "$(ls {begun} | wc -l)" -ge {units} ]'
    wait = f"for _ in $(seq 3000); do {met} && break; sleep 0.01; done; {met} || exit 1"
    meeting = compiler_script(
        tmp_path / "meeting",
        f'case "$target" in *.o) touch {begun}/$(basename "$target"); {wait};; esac',
        copy_library(),
    )
    load(tmp_path / "kernels", parts=parts, compiler=meeting, threads=units, watch=steps_of(shown))
    assert shown == [units + len(parts), *[1] * (units + len(parts))]
    assert {path.suffix for path in (tmp_path / "kernels").iterdir()} == {".so"}


@pytest.mark.full  # two processes that each import jax
def test_two_processes_may_make_it_at_once(tmp_path: Path) -> None:
    quick = compiler_script(tmp_path / "quick", copy_library())
    kernels = tmp_path / "kernels"
    command = [sys.executable, "-c", LOAD, str(kernels), quick, EXPERTS]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert [path.suffix for path in kernels.iterdir()] == [".so"]


@pytest.mark.parametrize("damage", ["cut", pytest.param("another bit", marks=pytest.mark.full)])
def test_a_damaged_library_is_made_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that was cut short would end the process by SIGBUS. Other damages are those of any kept file."""
    quick = compiler_script(tmp_path / "quick", copy_library())
    kernels = tmp_path / "kernels"
    load(kernels, parts=(EXPERTS,), compiler=quick)
    (path,) = kernels.iterdir()
    whole = path.read_bytes()
    path.unlink()  # it is loaded here: only a new file may have other contents
    path.write_bytes(DAMAGES[damage](whole))
    load(kernels, parts=(EXPERTS,), compiler=quick)
    assert path.read_bytes() == whole
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert f"{path} is damaged" in said
    caplog.clear()
    load(kernels, parts=(EXPERTS,), compiler=quick)
    assert not caplog.records


def test_every_handler_has_the_librarys_name() -> None:
    """A compiled program that was stored with one library cannot run with another."""
    library = native()
    cache, kv = jnp.zeros((2, 1, 2, 1, 4, 8)), jnp.zeros((3, 1, 8))
    program = jax.jit(library.write_kv).lower(cache, jnp.int32(0), kv, kv, jnp.arange(3))
    assert dict(library.digests)["float32"] in program.as_text()
    other = Library(tuple((part, f"another {part}") for part in PARTS))
    handlers = [(part, handler) for part in PARTS for handler in PARTS[part].handlers]
    assert len({one._target(*handler) for one in (library, other) for handler in handlers}) == 2 * len(handlers)


def test_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no C"):
        load(tmp_path, compiler="no-such-compiler")


def test_a_failed_build_gives_the_compilers_words(tmp_path: Path) -> None:
    broken = compiler_script(tmp_path / "broken", "echo 'no such instruction' >&2; exit 1")
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
        load(tmp_path / "kernels", compiler=compiler_script(tmp_path / "broken", *lines))


def test_a_linkers_reason_is_given_not_only_that_it_failed(tmp_path: Path) -> None:
    lines = (
        'case "$target" in *.o) : > "$target"; exit ;; esac',
        "echo '/usr/bin/ld: final link failed: No space left on device' >&2",
        "echo 'collect2: error: ld returned 1 exit status' >&2; exit 1",
    )
    with pytest.raises(UnavailableError, match="No space left on device"):
        load(tmp_path / "kernels", parts=(EXPERTS,), compiler=compiler_script(tmp_path / "full", *lines))


def test_a_library_that_crashes_is_not_loaded(tmp_path: Path) -> None:
    source = " ".join(f'extern "C" void {handler}() {{ __builtin_trap(); }}' for handler in PARTS[EXPERTS].handlers)
    crashing = compiler_script(tmp_path / "crashing", f"echo '{source}' | $real -shared -fPIC -x c++ - -o \"$target\"")
    with pytest.raises(UnavailableError, match="ended with status -"):
        load(tmp_path / "kernels", parts=(EXPERTS,), compiler=crashing)
    assert list((tmp_path / "kernels").iterdir()) == []


NOTHING = """#include "ffi.h"
static kernels::ffi::Error Nothing() { return kernels::ffi::Error::Success(); }
extern "C" [[gnu::visibility("default")]] XLA_FFI_Error* nothing(XLA_FFI_CallFrame* frame) {
  return frame->extension_start == nullptr ? nullptr : kernels::ffi::Call(*frame, Nothing, {});
}
"""


# One for each kind of proof, each of which is a process that imports jax.
@pytest.mark.parametrize(
    "part",
    [
        "float32",
        *(
            pytest.param(part, marks=pytest.mark.full)
            for part in (ELEMENTS, EXPERTS, CONVOLUTION, GATED_DELTA, "8-bits")
        ),
    ],
)
def test_a_part_that_computes_nothing_is_not_loaded(part: str, tmp_path: Path) -> None:
    source, made = tmp_path / "nothing.cc", tmp_path / "nothing.so"
    alias = 'extern "C" XLA_FFI_Error* {}(XLA_FFI_CallFrame*) __attribute__((alias("nothing")));\n'
    handlers = {name for part in PARTS.values() for name in part.handlers}
    source.write_text(NOTHING + "".join(map(alias.format, sorted(handlers))))
    flags = ("-std=c++17", "-shared", "-fPIC", "-isystem", ffi.include_dir(), "-I", str(SOURCES))
    subprocess.run([compiler(), *flags, str(source), "-o", str(made)], check=True)
    wrong = compiler_script(tmp_path / "wrong", f'cp {made} "$target"')
    with pytest.raises(UnavailableError, match="wrong"):
        load(tmp_path / "kernels", parts=(part,), compiler=wrong)
    assert list((tmp_path / "kernels").iterdir()) == []


@pytest.mark.full  # a whole part is compiled, for one wrong number; the test above is of those that are all wrong
def test_a_library_that_miscalculates_is_not_loaded(tmp_path: Path) -> None:
    """One coefficient of the exponential function is off."""
    copy = tmp_path / "sources"
    copy.mkdir()
    for path in SOURCES.glob("*.[ch]*"):
        (copy / path.name).write_text(path.read_text().replace("Broadcast(0.5f)", "Broadcast(0.4f)"))
    lines = (f'for argument; do shift; set -- "$@" "$(echo "$argument" | sed \'s,^{SOURCES},{copy},\')"; done',)
    wrong = compiler_script(tmp_path / "wrong", *lines, 'exec $real "$@" -O1')  # the wrong number needs no more
    with pytest.raises(UnavailableError, match="wrong by"):
        load(tmp_path / "kernels", parts=("float32",), compiler=wrong)
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
    """XLA's pool has so many threads, if JAX has one device; tests/conftest.py sets the other variables."""
    return dict(os.environ) | dict.fromkeys(("NPROC", "PJRT_NPROC"), str(threads)) | {"JAX_NUM_CPU_DEVICES": "1"}


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
