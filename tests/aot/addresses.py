"""Find bulk copies whose address in shared memory may be no multiple of what the copy engine takes.

Neither Mosaic nor the interpreter checks it. What is added to an address, and what it is multiplied by, is followed
through PTX back to where shared memory begins, but not through loops.
"""

import re
from collections.abc import Iterator

from pallas_kernels.gpu.shared_memory import COPY_ALIGNMENT

_COPY = re.compile(r"cp\.(?:async|reduce\.async)\.bulk\.tensor\.\S+")
_DEFINED = re.compile(r"^\s*(add\.s32|shl\.b32|mul\.lo\.s32|mad\.lo\.s32|or\.b32)\s+(%r\d+), (.*);", re.MULTILINE)
_ADDRESS = re.compile(r"\[(%r\d+)(?:\+(\d+))?\]")


def misaligned_copies(ptx: str) -> list[str]:
    """Return the tensor copies of a kernel whose address in shared memory is not shown to be aligned."""
    defined = {register: (kind, operands.split(", ")) for kind, register, operands in _DEFINED.findall(ptx)}
    found = []
    for line in ptx.splitlines():
        copy, addresses = _COPY.search(line), _ADDRESS.findall(line)
        if copy is None or not addresses:
            continue
        register, offset = addresses[0 if "shared::cluster.global" in copy[0] else -1]
        if any(step % COPY_ALIGNMENT for step in (int(offset or 0), *_steps(register, defined))):
            found.append(line.strip())
    return found


def _steps(register: str, defined: dict[str, tuple[str, list[str]]]) -> Iterator[int]:
    """Yield the constants that an address is the sum of multiples of."""
    if register not in defined:
        return
    kind, operands = defined[register]
    constants = [int(one) for one in operands if not one.startswith("%")]
    if kind == "shl.b32":
        yield from (1 << constant for constant in constants)
        return
    yield from constants
    factors = 2 if kind in ("mul.lo.s32", "mad.lo.s32") else 0
    for number, one in enumerate(operands):
        is_scaled = number < factors and len(constants) > 0
        if one.startswith("%") and not is_scaled:
            yield from _steps(one, defined)
