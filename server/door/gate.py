"""Count connections, and refuse those beyond the bounds."""

from collections import Counter

from jaxgen.server.addresses import Callers
from jaxgen.server.door.minute_log import MinuteLog
from jaxgen.server.errors import ApiError

RETRY_AFTER_SECONDS = 5
MAX_REFUSALS = 128
"""Most refused connections that are told why at the same time; further ones are closed without a word."""


class Ticket:
    """The place of one connection. ``refusal``: what to answer it instead of serving it."""

    __slots__ = ("_gate", "_name", "refusal")

    def __init__(self, gate: "Gate", name: str | None, refusal: ApiError | None) -> None:
        self._gate: Gate | None = gate
        self._name = name
        self.refusal = refusal

    def release(self) -> None:
        """Give the place back; once more does nothing."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self._name, refused=self.refusal is not None)


class Gate:
    """Bounds connections in all, and those of one caller's address unless it is a proxy's."""

    def __init__(self, max_connections: int, max_per_address: int, callers: Callers, log: MinuteLog) -> None:
        self.max_connections = max_connections
        self._max_per_address = max_per_address
        self._callers = callers
        self._log = log
        self._open = 0
        self._refused = 0
        self._by_name: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Connections that are served; the refused ones are not among them."""
        return self._open

    def admit(self, address: str | None) -> Ticket | None:
        """Return the place of a new connection, perhaps with a refusal; None: close it without a word."""
        name = None if address is None else self._callers.name(address)
        refusal = self._refusal(name)
        if refusal is None:
            self._open += 1
            if name is not None:
                self._by_name[name] += 1
        elif self._refused < MAX_REFUSALS:
            self._refused += 1
        else:
            return None
        return Ticket(self, name, refusal)

    def leave(self, name: str | None, *, refused: bool) -> None:
        if refused:
            self._refused -= 1
            return
        self._open -= 1
        if name is not None:
            self._by_name[name] -= 1
            if self._by_name[name] == 0:
                del self._by_name[name]

    def _refusal(self, name: str | None) -> ApiError | None:
        if self._open >= self.max_connections:
            flag = f"--max-connections {self.max_connections}"
            self._log.say("connections", f"refused a connection: {flag} are open")
            return _too_many("The server has too many connections.")
        if name is not None and self._by_name[name] >= self._max_per_address:
            flag = f"--max-connections-per-address {self._max_per_address}"
            self._log.say("connections of an address", f"refused a connection of {name}: {flag} are open")
            return _too_many("Your address has too many connections to this server.")
        return None


def _too_many(message: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return ApiError(503, message, code="too_many_connections", headers=headers)
