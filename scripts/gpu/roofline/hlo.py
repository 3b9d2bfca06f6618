"""Read the text of a compiled program: XLA's HLO after its passes. Each instruction outside of fusions is a kernel,
unless it is a mere view."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^ +(ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, (.*)|$)")
_OPERAND = re.compile(r"%([\w.-]+)(?:#(\d+))?")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z]*\d*[a-z]*\d*[a-z]*)\[([\d,]*)\]")
_WIDTH = re.compile(r"^[a-z]+(\d+)")
VIEWS = {"bitcast", "reshape"}
"""Operations that move nothing."""
_ELEMENTWISE = VIEWS | {"convert", "copy", "transpose"}
IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
"""Operations on a buffer that stays where it is, with the operand that is written into it."""
PARTS = ("slice", "dynamic-slice", "gather")
"""Operations that read a part of their first operand."""


@dataclass(frozen=True)
class Array:
    """Shape and dtype of an array in a program."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Size of an element; 0 for types other than numbers."""
        match = _WIDTH.match(self.dtype)
        return 8 if self.dtype == "pred" else int(match[1]) if match else 0

    @property
    def num_bytes(self) -> int:
        return self.size * self.bits // 8

    def bytes_of(self, elements: int) -> int:
        """Bytes of the given elements, or of all if these are fewer."""
        return min(elements, self.size) * self.bits // 8


def arrays_in(text: str) -> tuple[Array, ...]:
    """Return the arrays of a type: one, or those of a tuple."""
    return tuple(
        Array(dtype, tuple(int(one) for one in shape.split(",") if one)) for dtype, shape in _ARRAY.findall(text)
    )


@dataclass(frozen=True)
class Operand:
    """A use of a value. ``part``: of which element of a tuple; None: of all of it."""

    name: str
    part: int | None = None


@dataclass(frozen=True)
class Instruction:
    """One line of a computation: ``name = arrays opcode(operands), attributes``."""

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[Operand, ...]
    attributes: str
    argument: str
    """What stands between the brackets: of a parameter, its number."""

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.arrays)

    def attribute(self, name: str) -> str | None:
        """Return the text of ``name={...}`` or ``name=%value``."""
        match = re.search(rf"\b{name}=(?:\{{([^}}]*)\}}|%?([\w.-]+))", self.attributes)
        return None if match is None else match[1] if match[1] is not None else match[2]

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the numbers of ``name={...}``."""
        return tuple(int(one) for one in (self.attribute(name) or "").split(",") if one)

    @property
    def op_name(self) -> str:
        """Where in the traced function it is from: names between slashes."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""


@dataclass(frozen=True)
class Computation:
    """Instructions in order; the last one, or that with ROOT, is the result."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction
    by_name: dict[str, Instruction] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {one.name: one for one in self.instructions})

    def arrays_of(self, operand: Operand) -> tuple[Array, ...]:
        """Return the arrays of an operand."""
        arrays = self.by_name[operand.name].arrays
        return arrays if operand.part is None else arrays[operand.part : operand.part + 1]

    def parameter(self, number: int) -> Instruction:
        return next(one for one in self.instructions if one.opcode == "parameter" and one.argument == str(number))

    @cached_property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """By a value's name, the instructions that use it, and as which operand."""
        result: dict[str, list[tuple[Instruction, int]]] = {}
        for one in self.instructions:
            for position, operand in enumerate(one.operands):
                result.setdefault(operand.name, []).append((one, position))
        return result


@dataclass(frozen=True)
class Module:
    """A compiled program."""

    name: str
    entry: Computation
    computations: dict[str, Computation]

    def called(self, instruction: Instruction, *names: str) -> Computation:
        """Return the computation that an instruction names in one of these attributes. Raises ValueError if none."""
        for name in names:
            called = instruction.attribute(name)
            if called is not None:
                return self.computations[called.strip("%")]
        raise ValueError(f"{instruction.opcode} {instruction.name} has none of {', '.join(names)}")

    def elements_read(self, computation: Computation, name: str) -> int:
        """Return how many elements of a value its users in a computation read."""
        (array, *_) = computation.by_name[name].arrays or (Array("token", ()),)
        result = 0
        for user, position in computation.users.get(name, []):
            if user.opcode in PARTS and position == 0:
                result += sum(one.size for one in user.arrays)
            elif user.opcode in _ELEMENTWISE or (user.opcode == "reduce" and position == 0):
                is_result = user is computation.root or not computation.users.get(user.name)
                of_each = max(array.size // max(user.arrays[0].size, 1), 1)
                result += array.size if is_result else of_each * self.elements_read(computation, user.name)
            elif user.opcode == "fusion":
                inner = self.called(user, "calls")
                result += self.elements_read(inner, inner.parameter(position).name)
            elif not (user.opcode in IN_PLACE and position == 0 and is_result_of(computation, user)):
                result += array.size
        return min(result, array.size)

    def bytes_written(self, computation: Computation) -> int:
        """Return the bytes of a computation's result that it writes: of a buffer updated in place only the update."""
        roots = [computation.root]
        if computation.root.opcode == "tuple":
            roots = [computation.by_name[one.name] for one in computation.root.operands]
        return sum(self._written(computation, one) for one in roots)

    def _written(self, computation: Computation, root: Instruction) -> int:
        result = root
        while root.opcode in VIEWS and root.operands:
            root = computation.by_name[root.operands[0].name]
        if root.opcode not in IN_PLACE:
            return result.num_bytes
        (update,) = computation.arrays_of(root.operands[IN_PLACE[root.opcode]])
        return min(update.num_bytes, result.num_bytes)


def is_result_of(computation: Computation, instruction: Instruction) -> bool:
    """Whether nothing but the computation's result uses an instruction, perhaps by way of views."""
    users = [user for user, _ in computation.users.get(instruction.name, [])]
    if instruction is computation.root and not users:
        return True
    return bool(users) and all(
        user is computation.root or (user.opcode in VIEWS and is_result_of(computation, user)) for user in users
    )


def module_of(text: str) -> Module:
    """Return the program of a text. Raises ValueError if it has none."""
    if not text.startswith("HloModule "):
        raise ValueError("the text has no HloModule")
    computations, entry = {}, None
    for computation, is_entry in _computations(text):
        computations[computation.name] = computation
        entry = computation if is_entry else entry
    name = text.split(None, 2)[1].rstrip(",")
    if entry is None:
        raise ValueError(f"the program {name} has no ENTRY")
    return Module(name, entry, computations)


def _computations(text: str) -> Iterator[tuple[Computation, bool]]:
    name, is_entry, instructions, root = "", False, list[Instruction](), None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, is_entry, instructions, root = header[2], header[1] is not None, [], None
        elif line == "}":
            yield Computation(name, tuple(instructions), root or instructions[-1]), is_entry
        elif match := _INSTRUCTION.match(line):
            marked, own, arrays, opcode, argument, attributes = match.groups()
            operands = tuple(Operand(of, int(part) if part else None) for of, part in _OPERAND.findall(argument))
            instructions.append(Instruction(own, arrays_in(arrays), opcode, operands, attributes or "", argument))
            root = instructions[-1] if marked else root
