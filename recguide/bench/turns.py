"""Runs that take turns on one machine, each on a clock of its own.

A machine that others use, too, changes its speed from one second to the next. Runs that take turns meet the same of it,
so that their ratio says something where neither rate does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from recguide.engine.clock import SimulatedClock, Stopwatch

TURN = 0.2  # seconds: long enough that a policy's code is warm, short enough that the machine stays what it is


class InTurns(Protocol):
    """A run that can be stopped after every step."""

    clock: Stopwatch | SimulatedClock
    steps: Iterator[None]
    """Makes a step whenever it is asked for the next, and ends with the run."""


Run = TypeVar("Run", bound=InTurns)


def take_turns(runs: Sequence[Run]) -> Iterator[Run]:
    """Let every run that has not ended make steps for TURN seconds of its clock, again and again; yields it then."""
    going = list(runs)
    while going:
        for run in tuple(going):
            if not _turn(run):
                going.remove(run)
            yield run


def _turn(run: InTurns) -> bool:
    """Whether there is more to do afterwards."""
    with run.clock.running():
        until = run.clock.now() + TURN
        for _ in run.steps:
            if run.clock.now() >= until:
                return True
    return False
