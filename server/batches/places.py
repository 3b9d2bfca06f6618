"""Places for lines of batches, for which their owners wait in turn."""

import asyncio

from jaxgen.server.shares import Shares


class Places:
    """``limit`` places that owners share: one alone may have all, and each of several at least its share.

    Who finds none waits. A place that comes back goes to the longest waiting of those who may have it.
    """

    def __init__(self, limit: int) -> None:
        self._shares = Shares(limit)
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def take(self, owner: str) -> None:
        """Take a place for an owner, when there is one for it."""
        if self._shares.take(owner):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it got the place at the same moment
                self.give_back(owner)
            raise

    def give_back(self, owner: str) -> None:
        """Give an owner's place back."""
        self._shares.give_back(owner)
        self._waiting = [waiter for waiter in self._waiting if not self._has_place(*waiter)]

    def _has_place(self, owner: str, turn: asyncio.Future[None]) -> bool:
        """Return whether one who waits need not any more: it gets a place now, or has gone."""
        if turn.done():
            return True
        if not self._shares.take(owner):
            return False
        turn.set_result(None)
        return True
