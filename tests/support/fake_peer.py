"""``python -m tests.support.fake_peer PORT EXTRA``: a peer that counts on from the last token of a prompt.

EXTRA more tokens than were asked for come with the last one.
"""

import sys
import time

from scripts.peers.token_server import Emit, NewTokens, TokenRequest, serve


class Counting:
    def __init__(self, extra: int) -> None:
        self._extra = extra
        self._open: dict[int, tuple[int, int]] = {}

    def add(self, number: int, asked: TokenRequest) -> None:
        """An answer that must match ends after half of its tokens."""
        length = asked.max_tokens if asked.regex is None else asked.max_tokens // 2
        self._open[number] = asked.prompt[-1], length

    def cancel(self, number: int) -> None:
        self._open.pop(number, None)

    def has_work(self) -> bool:
        return bool(self._open)

    def step(self, emit: Emit) -> None:
        time.sleep(0.001)
        news = []
        for number, (last, left) in list(self._open.items()):
            count = 1 + self._extra if left == 1 else 1
            news.append(NewTokens(number, [last + 1 + i for i in range(count)], ended=left == 1))
            self._open[number] = last + 1, left - 1
            if left == 1:
                del self._open[number]
        emit(news)


if __name__ == "__main__":
    serve(lambda: Counting(int(sys.argv[2])), int(sys.argv[1]))
