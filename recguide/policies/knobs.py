"""Knobs that are no numbers: a set of blocks (``2/4/8``), a schedule from load to block (``8@2/5@4/1``), a file."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from recguide.errors import RecGuideError
from recguide.policies.base import Knob

Blocks = tuple[int, ...]
Schedule = tuple[tuple[int | None, int], ...]


@dataclass(frozen=True, kw_only=True)
class BlocksKnob(Knob):
    """Block sizes, ascending, each in ``low..high``: ``2/4/8``."""

    default: Blocks

    def check(self, value: Any, policy: str) -> Blocks:
        """The blocks as integers, or a RecGuideError naming what is expected."""
        parts = value.split("/") if isinstance(value, str) else value
        try:
            blocks = tuple(_whole(part) for part in parts)
        except (TypeError, ValueError, OverflowError):
            raise RecGuideError(
                f"policy {policy}: {self.name} is {value!r}, expected whole numbers such as {self.text(self.default)}"
            ) from None
        if not blocks or list(blocks) != sorted(set(blocks)) or not self.low <= blocks[0] <= blocks[-1] <= self.high:
            raise RecGuideError(
                f"policy {policy}: {self.name} is {value!r}; allowed: {self.low}..{self.high} {self.unit}, ascending"
            )
        return blocks

    def text(self, value: Blocks) -> str:
        return "/".join(map(str, value))


@dataclass(frozen=True, kw_only=True)
class ScheduleKnob(Knob):
    """``8@2/5@4/1``: block 8 for up to 2 requests, 5 for up to 4, 1 for more. The last entry has no limit.

    Its value is ((2, 8), (4, 5), (None, 1)): limits ascending, None last.
    """

    default: Schedule

    def check(self, value: Any, policy: str) -> Schedule:
        """The schedule as pairs, or a RecGuideError naming what is expected."""
        try:
            entries = [_entry(part) for part in value.split("/")] if isinstance(value, str) else list(value)
            *limited, last = (None if limit is None else _whole(limit) for limit, _ in entries)
            blocks = [_whole(block) for _, block in entries]
        except (TypeError, ValueError, OverflowError):
            raise RecGuideError(
                f"policy {policy}: {self.name} is {value!r}, expected BLOCK@REQUESTS/.../BLOCK "
                f"such as {self.text(self.default)}"
            ) from None
        if last is not None or None in limited or any(a >= b for a, b in itertools.pairwise([0, *limited])):
            raise RecGuideError(
                f"policy {policy}: {self.name} is {value!r}; limits must ascend from 1 on, and the last block has none"
            )
        wrong = [block for block in blocks if not self.low <= block <= self.high]
        if wrong:
            raise RecGuideError(
                f"policy {policy}: {self.name} has block {wrong[0]}; allowed: {self.low}..{self.high} {self.unit}"
            )
        return tuple(zip([*limited, last], blocks, strict=True))

    def text(self, value: Schedule) -> str:
        return "/".join(str(block) if limit is None else f"{block}@{limit}" for limit, block in value)


@dataclass(frozen=True, kw_only=True)
class FileKnob(Knob):
    """A path, empty for none."""

    takes_text: ClassVar[bool] = True
    default: str = ""
    low: float = 0
    high: float = 0
    unit: str = ""

    def check(self, value: Any, policy: str) -> str:
        return str(value)


def _entry(text: str) -> tuple[str | None, str]:
    block, at, limit = text.partition("@")
    return (limit if at else None), block


def _whole(value: Any) -> int:
    """The value as a whole number; ValueError for a fraction."""
    number = int(value)
    if number != float(value):
        raise ValueError(value)
    return number
