"""Text of a growing token list: incremental decoding that never shows half a character, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from recguide.models.tokenizer import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Decodes tokens as they come. ``text`` is all that is safe to show."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._prefix = self._read = 0
        self.text = ""

    def feed(self, ids: Sequence[int]) -> str:
        """Take new tokens; return the new text they make visible."""
        self._ids += ids
        before = self._tokenizer.decode(self._ids[self._prefix : self._read])
        after = self._tokenizer.decode(self._ids[self._prefix :])
        if after.endswith(UNFINISHED) or len(after) <= len(before):
            return ""
        return self._show(after[len(before) :])

    def finish(self) -> str:
        """The rest, half characters included."""
        before = self._tokenizer.decode(self._ids[self._prefix : self._read])
        return self._show(self._tokenizer.decode(self._ids[self._prefix :])[len(before) :])

    def _show(self, new: str) -> str:
        self._prefix, self._read = self._read, len(self._ids)
        self.text += new
        return new


def held_back(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of ``text`` that may be the beginning of a stop string."""
    longest = max(map(len, stops), default=0)
    sizes = range(min(longest - 1, len(text)), 0, -1)
    return next((n for n in sizes if any(stop.startswith(text[-n:]) for stop in stops)), 0)


class StopMatcher:
    """Finds the first stop string in a growing text, token by token."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]):
        self._stream = TextStream(tokenizer)
        self._stops = stops
        self._longest = max(map(len, stops))

    def feed(self, ids: Sequence[int]) -> tuple[int, str] | None:
        """Take new tokens. Returns (tokens of ``ids`` to keep, text before the stop string) at the first match."""
        for count, token in enumerate(ids, 1):
            new = self._stream.feed([token])
            text = self._stream.text
            window = max(0, len(text) - len(new) - self._longest)
            places = [at for stop in self._stops if (at := text.find(stop, window)) >= 0]
            if places:
                return count, text[: min(places)]
        return None
