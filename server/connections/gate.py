"""Count connections, and refuse those beyond the bounds, unless an idle one can be closed for them."""

from collections import Counter
from collections.abc import Callable
from time import monotonic

from jaxgen.server.addresses import Callers
from jaxgen.server.connections.minute_log import MinuteLog
from jaxgen.server.errors import ApiError

RETRY_AFTER_SECONDS = 5
MAX_REFUSALS = 128
"""Most refused connections that are told why at the same time; further ones are closed without a word."""
LEAST_IDLE_SECONDS = 5.0
"""How long a connection must have been idle to be closed for a new one: a client may be about to use it again."""


class ConnectionSlot:
    """The place of one connection. ``refusal``: what to answer it instead of serving it."""

    __slots__ = ("_gate", "name", "refusal")

    def __init__(self, gate: "Gate", name: str | None, refusal: ApiError | None) -> None:
        self._gate: Gate | None = gate
        self.name = name
        """Of the caller's address; None: a proxy's."""
        self.refusal = refusal

    def rest(self, close: Callable[[], bool]) -> None:
        """Note that the connection is idle from now on. ``close``: closes it at once, or returns False if it cannot."""
        if self._gate is not None:
            self._gate.idle[self] = monotonic(), close

    def wake(self) -> None:
        """Note that the connection is not idle."""
        if self._gate is not None:
            self._gate.idle.pop(self, None)

    def release(self) -> None:
        """Give the place back; once more does nothing."""
        self.wake()
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self.name, refused=self.refusal is not None)


class Gate:
    """Bounds connections in all, and those of one caller's address unless it is a proxy's.

    At a bound, the connection that has been idle the longest is closed for a new one. It must have been idle for
    ``least_idle`` seconds.
    """

    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        callers: Callers,
        log: MinuteLog,
        *,
        least_idle: float = LEAST_IDLE_SECONDS,
    ) -> None:
        self.max_connections = max_connections
        self.least_idle = least_idle
        self.idle: dict[ConnectionSlot, tuple[float, Callable[[], bool]]] = {}
        """Idle connections: since when, and how to close each; the longest idle first."""
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

    def admit(self, address: str | None) -> ConnectionSlot | None:
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
        return ConnectionSlot(self, name, refusal)

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
        if name is not None and self._by_name[name] >= self._max_per_address and not self._close_idle(name):
            flag = f"--max-connections-per-address {self._max_per_address}"
            self._log.say("connections of an address", f"refused a connection of {name}: {flag} are open")
            return _too_many("Your address has too many connections to this server.")
        if self._open >= self.max_connections and not self._close_idle(None):
            flag = f"--max-connections {self.max_connections}"
            self._log.say("connections", f"refused a connection: {flag} are open")
            return _too_many("The server has too many connections.")
        return None

    def _close_idle(self, name: str | None) -> bool:
        """Close the connection of an address that has been idle the longest; None: of all addresses.

        Return whether there was one.
        """
        latest = monotonic() - self.least_idle
        for slot, (since, close) in self.idle.items():
            if since > latest:
                break
            if (name is None or slot.name == name) and close():
                slot.release()  # its end is told later
                return True
        return False


def _too_many(message: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return ApiError(503, message, code="too_many_connections", headers=headers)
