"""Turn the tokens of one completion into its text, up to a stop string. Host only, no jax."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxgen.core.request import FinishReason
from jaxgen.text.detokenizer import NONE_SHOWN, Detokenizer, TokenTexts
from jaxgen.text.stop_strings import StopStrings


class CompletionText:
    """The text of one completion: ``feed`` it each token until ``finish_reason`` is set.

    The pieces join to the text up to the first stop string. Text of the first ``min_tokens`` tokens is not searched
    for stop strings. ``offset`` is where the next token's text begins, in characters of the completion without regard
    to stop strings.
    """

    def __init__(
        self,
        tokenizer: TokenTexts,
        *,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        shown: Mapping[int, str] = NONE_SHOWN,
        names: bool = False,
        include_stop: bool = False,
        skips: Callable[[], bool] | None = None,
    ) -> None:
        """``prompt``, ``shown`` and ``names``: as in Detokenizer. ``include_stop``: a stop string is part of the text,
        and so is an EOS or stop token that has a text or is ``shown``. ``skips``: says, by all ``pieces`` so far,
        whether the next character is not searched for stop strings; None: all are searched."""
        self._detokenizer = Detokenizer(tokenizer, prompt, shown, names=names)
        self._stop = StopStrings(stop, keep=include_stop) if stop else None
        self._include_stop = include_stop
        self._skips = skips if stop else None
        self._unsearched = min_tokens if stop else 0
        self.offset = 0
        self.finish_reason: FinishReason | None = None
        """Set once the text is complete: STOP after a stop string, else the reason that was fed."""

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None: none did."""
        return None if self._stop is None else self._stop.stop_string

    def feed(self, token: int | None, finish_reason: FinishReason | None = None) -> str:
        """Return the text that became certain with this token; with a ``finish_reason``, also the rest of the text.

        With ``finish_reason`` STOP the token is the EOS or stop token, which is not part of the text, unless
        ``include_stop``.
        """
        return "".join(self.pieces(token, finish_reason))

    def pieces(self, token: int | None, finish_reason: FinishReason | None = None) -> Iterator[str]:
        """Yield what ``feed`` returns; where some text ``skips`` the search, by character, as each may decide that."""
        text = ""
        if token is not None and (finish_reason is not FinishReason.STOP or self._include_stop):
            text = self._detokenizer.push(token)
            self.offset += len(text)
            if self._unsearched:
                self._unsearched -= 1
            elif self._stop is not None:
                yield from self._searched(self._stop, text)
                if self._stop.stopped:
                    self.finish_reason = FinishReason.STOP
                    return
                text = ""
        if text:
            yield text
        if finish_reason is not None:
            yield from self._finish(finish_reason)

    def _searched(self, stop: StopStrings, text: str) -> Iterator[str]:
        """Yield what is certain of a text up to a stop string."""
        if self._skips is None:
            yield stop.push(text)
            return
        for char in text:
            if self._skips():
                yield stop.flush() + char
            elif not stop.stopped:
                yield stop.push(char)

    def _finish(self, reason: FinishReason) -> Iterator[str]:
        text = self._detokenizer.flush()
        if self._stop is not None:
            yield from self._searched(self._stop, text)
            text = self._stop.flush()
            if self._stop.stopped:
                reason = FinishReason.STOP
        yield text
        self.finish_reason = reason
