"""Acceptance: how much of a trunk's draft the verifier's own draws confirm, and which branch came true."""

from __future__ import annotations

from collections.abc import Sequence

from recguide.engine.plan import Branch


def accepted_length(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """Leading drafts that equal the verifier's draws. drawn[i] decides the place of drafts[i]; drawn has one more."""
    for i, token in enumerate(drafts):
        if token != drawn[i]:
            return i
    return len(drafts)


def branch_came_true(branch: Branch, first: int, accepted: int, drawn: Sequence[int]) -> bool:
    """Whether a branch starts exactly where the committed text ends.

    ``first`` is the token at the branch's first position (its own token, or what its first mask drew). The branch is
    usable iff exactly parent - 1 drafts were accepted and the verifier emitted ``first`` there; a loose one, and an
    open one that makes no guess, need only the former.
    """
    unconditional = branch.loose or (branch.token is None and not branch.guesses)
    return branch.parent == accepted + 1 and (unconditional or first == drawn[accepted])
