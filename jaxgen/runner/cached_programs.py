"""Remember which entries of JAX's cache belong to a step, so that the next start neither traces nor lowers it.

JAX's cache names a program by its lowered text: a start traces the step to learn the name, most of a second for two
widths. Here the caller names a file by all that the step is made from. The file has the name of each program in JAX's
cache, and what JAX found out of its arguments when it traced. Only for a CPU.

Compiled code stays in JAX's cache alone, as it was written there first: jaxlib 0.11.2 loses functions of a program for
CPUs that is loaded and serialized again.
"""

import base64
import io
import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache as jax_internals  # nothing public names a program's entry
from jaxlib import xla_client  # nothing of jax tells for which processor XLA compiles

from jaxgen.files.cache_files import find, keep, make_room
from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.program import shapes_of
from jaxgen.runner.programs import CompiledStep, RowPrograms
from jaxgen.runner.state_snapshots import StatePrograms

logger = logging.getLogger(__name__)

MAX_BYTES = 2**26
"""Bytes of all files in a folder, of which those used least recently go first."""
_NO_PROGRAM = (
    "jax_compilation_cache",
    "jax_persistent_cache",
    "jax_enable_compilation_cache",
    "jax_platform",
    "jax_log",
)
"""Beginnings of the names of JAX's settings that change no program."""


class _UnknownProgramError(Exception):
    """JAX's cache has no such program: it was removed, or there is no cache."""


def cached_or_compiled(path: Path, kernels: Kernels, compile_: Callable[[], CompiledStep]) -> CompiledStep:
    """Return the programs of a file, or else the result of ``compile_``, which the file then names.

    ``kernels``: of the programs. What cannot be kept or found again costs a warning and the time to trace and compile.
    """
    if jax.config.jax_compilation_cache_dir is None:  # no name would lead to a program
        return compile_()
    compiled = _read(path, kernels)
    if compiled is None:
        with _entries_noted() as entries:
            compiled = compile_()
        _write(path, compiled, entries)
    return compiled


def compiler_identity() -> dict[str, Any]:
    """Return the conditions of a program: XLA's processor, and the settings of JAX."""
    topology = xla_client.get_topology_for_devices(jax.devices())
    settings: Mapping[str, Any] = jax.config.values
    return {
        "processor": f"{topology.platform_version} {topology.fingerprint()}",
        "settings": {name: repr(value) for name, value in settings.items() if not name.startswith(_NO_PROGRAM)},
    }


@dataclass(frozen=True)
class _Entry:
    name: str
    executable: Any


@contextmanager
def _entries_noted() -> Iterator[list[_Entry]]:
    """Return a list that collects the entries of JAX's cache that are read or written in this context."""
    internals: Any = jax_internals
    read, write = internals.get_executable_and_time, internals.put_executable_and_time
    entries: list[_Entry] = []

    def noted_read(name: str, *args: Any, **options: Any) -> Any:
        executable, seconds = read(name, *args, **options)
        if executable is not None:
            entries.append(_Entry(name, executable))
        return executable, seconds

    def noted_write(name: str, module: str, executable: Any, *args: Any, **options: Any) -> None:
        write(name, module, executable, *args, **options)
        entries.append(_Entry(name, executable))

    internals.get_executable_and_time, internals.put_executable_and_time = noted_read, noted_write
    try:
        yield entries
    finally:
        internals.get_executable_and_time, internals.put_executable_and_time = read, write


def _read(path: Path, kernels: Kernels) -> CompiledStep | None:
    text = find(path, "the programs are traced again")
    if text is None:
        return None
    content = json.loads(text)
    try:
        programs = {name: _loaded(program_text, kernels) for name, program_text in content["programs"].items()}
    except _UnknownProgramError as error:
        logger.debug("the programs are traced again: %s", error)
        return None
    except Exception as error:  # of zlib, pickle and XLA; JAX then finds what is damaged, and removes it
        logger.warning("%s names programs that cannot be loaded, they are traced again: %s", path, error)
        return None
    with suppress(OSError):
        os.utime(path)
    rows = RowPrograms(programs["load_row"], programs["load_penalties"], programs["load_allowed"])
    states = StatePrograms(programs["load_state"], programs["take_snapshot"]) if "load_state" in programs else None
    step = programs["run"], programs.get("narrow"), rows, programs["copy_block"]
    return CompiledStep(*step, kernels, **content["bytes"], states=states)


def _write(path: Path, compiled: CompiledStep, entries: list[_Entry]) -> None:
    rows, states = compiled.rows, compiled.states
    programs: dict[str, Any] = {
        "run": compiled.run,
        "narrow": compiled.narrow,
        "load_row": rows.load_row,
        "load_penalties": rows.load_penalties,
        "load_allowed": rows.load_allowed,
        "copy_block": compiled.copy_block,
        "load_state": states and states.load,
        "take_snapshot": states and states.take,
    }
    names = {id(entry.executable): entry.name for entry in entries}
    try:
        texts = {
            name: _text_of(program, names, compiled.kernels)
            for name, program in programs.items()
            if program is not None
        }
    except _UnknownProgramError as error:
        logger.debug("the programs are not kept: %s", error)
        return
    sizes = {"temporary_bytes": compiled.temporary_bytes, "aliased_bytes": compiled.aliased_bytes}
    text = json.dumps({"programs": texts, "bytes": sizes})
    try:
        make_room(path.parent, len(text), MAX_BYTES)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)
        return
    keep(path, text)


def _text_of(program: Any, names: Mapping[int, str], kernels: Kernels) -> str:
    """Return a program without its code as text."""
    results = shapes_of(program.out_info)
    traced = program._executable._unloaded_executable, program.args_info, results, program._no_kwargs
    file = io.BytesIO()
    _Pickler(file, names, kernels).dump(traced)
    return base64.b64encode(file.getvalue()).decode()


def _loaded(text: str, kernels: Kernels) -> Any:
    """Return a program, as jax.experimental.serialize_executable makes it."""
    unloaded, arguments, results, no_kwargs = _Unpickler(io.BytesIO(base64.b64decode(text)), kernels).load()
    return jax.stages.Compiled(unloaded.load(), [], arguments, jax.tree.structure(results), no_kwargs=no_kwargs)


def _parts(kernels: Kernels) -> dict[str, Any]:
    """Return what the arguments of a program may have of its kernels, by name."""
    coded = {"quantized": kernels.quantized, "floats": kernels.floats}
    others = {f"other {name}": part.otherwise for name, part in coded.items() if part is not None}
    parts = {"all": kernels, "packed": kernels.packed, **coded, **others}
    return {name: part for name, part in parts.items() if part is not None}


class _Pickler(pickle.Pickler):
    """Writes names in place of what a process has of its own: code, the device, and kernels."""

    def __init__(self, file: io.BytesIO, names: Mapping[int, str], kernels: Kernels) -> None:
        super().__init__(file)
        self._names = names
        self._parts = {id(part): name for name, part in _parts(kernels).items()}

    def persistent_id(self, obj: Any) -> tuple[str, Any] | None:
        if id(obj) in self._parts:
            return "kernels", self._parts[id(obj)]
        if isinstance(obj, xla_client.LoadedExecutable | xla_client.Executable):
            if id(obj) not in self._names:
                raise _UnknownProgramError("no entry of JAX's cache has one of them")
            return "program", self._names[id(obj)]
        if isinstance(obj, xla_client.Device):
            return "device", obj.id
        return ("client", None) if isinstance(obj, xla_client.Client) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kernels: Kernels) -> None:
        super().__init__(file)
        self._parts = _parts(kernels)
        self._devices = {device.id: device for device in jax.devices()}
        self._client = jax.devices()[0].client

    def persistent_load(self, pid: tuple[str, Any]) -> Any:
        kind, name = pid
        if kind == "kernels":
            return self._parts[name]
        if kind == "device":
            return self._devices[name]
        return self._client if kind == "client" else self._program(name)

    def _program(self, name: str) -> Any:
        devices = xla_client.DeviceList((jax.devices()[0],))  # the one that steps are compiled for
        executable, _ = jax_internals.get_executable_and_time(name, None, self._client, devices)
        if executable is None:
            raise _UnknownProgramError(f"{name} is not in JAX's cache")
        return executable
