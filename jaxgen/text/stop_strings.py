"""End a text that comes in pieces at the first of its stop strings. Host only, no jax."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string, and holds back text that may become a part of one.

    The first match is the stop string that is complete first, as if text came character by character. So it does not
    depend on the pieces of the text. Of two that are complete at the same character, the longer one matches. With
    ``keep`` the match is itself passed on. One Knuth-Morris-Pratt automaton per stop string (SIAM J. Comput. 6, 1977)
    makes the work per character constant.
    """

    def __init__(self, stop: Sequence[str], *, keep: bool = False) -> None:
        self._stop = stop
        self._keep = keep
        self._fallback = [_prefix_function(string) for string in stop]
        self._matched = [0] * len(stop)
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that ended the text."""

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def push(self, text: str) -> str:
        """Return the text that is certain now; an empty string once a stop string was found."""
        if self.stopped:
            return ""
        if not self._stop:
            return text
        buffer = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            if length := self._step(char):
                self.stop_string = buffer[end - length : end]
                self._held = ""
                return buffer[: end if self._keep else end - length]
        certain = len(buffer) - max(self._matched)
        self._held = buffer[certain:]
        return buffer[:certain]

    def flush(self) -> str:
        """Return the text still held back, which did not become a stop string. The search begins again."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stop)
        return held

    def _step(self, char: str) -> int:
        """Advance all automata by one character; return the length of the longest stop string now complete, or 0."""
        complete = 0
        for i, string in enumerate(self._stop):
            matched = self._matched[i]
            while matched and string[matched] != char:
                matched = self._fallback[i][matched - 1]
            matched += string[matched] == char
            self._matched[i] = matched
            if matched == len(string):
                complete = max(complete, matched)
        return complete


def _prefix_function(string: str) -> list[int]:
    """Return, for each i, the length of the longest proper prefix of ``string[: i + 1]`` that is also its suffix."""
    lengths = [0] * len(string)
    for i in range(1, len(string)):
        length = lengths[i - 1]
        while length and string[i] != string[length]:
            length = lengths[length - 1]
        lengths[i] = length + (string[i] == string[length])
    return lengths
