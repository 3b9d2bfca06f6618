"""What may become of a file: it is cut short, lost on the disk, or has another bit."""

from collections.abc import Callable

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes((17 + 31 * i) % 251 for i in range(len(data))),
    "longer": lambda data: data + b"x",
    "another bit": lambda data: data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 1]) + data[len(data) // 3 + 1 :],
    "another bit at the end": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
}
"""By name, the contents that become of others."""
