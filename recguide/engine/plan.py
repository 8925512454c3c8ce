"""Plans: what a step does for one request. A policy makes them, the layout turns them into rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows that draft: they see the cache, the trunk's first ``parent`` rows, and themselves bidirectionally.

    parent 0 with ``token`` = the seed is a draft branch. parent p >= 1 starts at the position of draft ``d_p``:
    with a token it is a correction branch, without one (``None``, masks only) an open branch; open at the whole
    trunk (p = verify + 1) it is the continuation branch.

    ``known`` [masks] or empty: what earlier forwards revealed of the masks (None: still masked). ``threshold``: reveal
    only masks of at least this probability, and always the surest one; at 0 all are revealed at once. ``loose``: an
    open branch that is used whatever the verifier emits at its first position, though its other masks assumed their
    own guess there (TiDAR, the published quadratic mode).

    ``shift`` is the draft convention. 0: a mask predicts the token at its own position, so that an open branch begins
    with a guess at what the verifier emits there. 1: every row predicts the position behind it, the token's own row
    too; an open branch has no guess, and is usable whatever the verifier emits.
    """

    parent: int
    token: int | None
    masks: int
    known: tuple[int | None, ...] = ()
    threshold: float = 0.0
    loose: bool = False
    shift: int = 0

    @property
    def rows(self) -> int:
        return self.masks + (self.token is not None)

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """What each row holds; None is a mask."""
        head = () if self.token is None else (self.token,)
        return head + (self.known or (None,) * self.masks)

    @property
    def scored(self) -> tuple[bool, ...]:
        """Which rows need logits."""
        return tuple(self.shift == 1 or token is None for token in self.tokens)

    @property
    def guesses(self) -> bool:
        """Whether the first scored row is a guess at the verifier's token, and no draft."""
        return self.token is None and self.shift == 0

    @property
    def drafts(self) -> int:
        """Draft tokens it yields."""
        return sum(self.scored) - self.guesses

    def cut(self, masks: int) -> Branch:
        """The same branch with fewer masks."""
        return replace(self, masks=masks, known=self.known[:masks])


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a policy expected of its plan: ``value`` in tokens (what it commits, and what drafts ready behind it are
    worth), ``step_ms`` of the whole step, P(accepted | reached) of the drafts at hand, and ``alternatives``: value less
    the price of rows, had it verified 0, 1, ... of them."""

    value: float
    step_ms: float
    conditional: Sequence[float]
    alternatives: Sequence[float]


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """``verify`` draft tokens in the trunk (0: plain AR, None: no trunk) and the branches that ride along.

    ``propensity`` is the probability with which the policy chose this plan (1 where it did not draw). ``outlook`` is
    for the decision log; plans that do the same are equal whatever was expected of them.
    """

    verify: int | None
    branches: tuple[Branch, ...] = ()
    propensity: float = 1.0
    outlook: Outlook | None = field(default=None, compare=False)

    @property
    def rows(self) -> int:
        trunk = 0 if self.verify is None else 1 + self.verify
        return trunk + sum(branch.rows for branch in self.branches)

    def check(self, drafts: int) -> None:
        """Refuse a plan that cannot be laid out for a request holding ``drafts`` draft tokens."""
        trunk = 0 if self.verify is None else self.verify + 1
        if self.rows == 0:
            raise ValueError("plan has no rows: give it a trunk or a branch")
        if trunk > drafts + 1:
            raise ValueError(f"plan verifies {self.verify} draft tokens, the request has {drafts}")
        for branch in self.branches:
            if not 0 <= branch.parent <= trunk:
                raise ValueError(f"branch parent {branch.parent} is outside the trunk's 0..{trunk} rows")
            if not any(branch.scored):
                raise ValueError(f"branch needs at least one mask, got {branch.masks}")
            if branch.known and (len(branch.known) != branch.masks or None not in branch.known):
                raise ValueError(f"known {branch.known} must have {branch.masks} places and a mask among them")
            if branch.parent == 0 and branch.token is None:
                raise ValueError("a branch at parent 0 starts at the seed's position and needs the seed as its token")


AR = RequestPlan(0)


def clamp(plan: RequestPlan, drafts: int, remaining: int) -> RequestPlan:
    """Cut a plan to what can still be committed, so that budgets are exact and no row is bought for nothing.

    ``drafts`` is how many draft tokens the request holds, ``remaining`` how many tokens it may still commit (>= 1).
    """
    if plan.verify is None:
        branches = _fit(plan.branches, 0, remaining)
        verify = None if branches else 0
    else:
        verify = min(plan.verify, drafts, remaining - 1)
        branches = _fit(plan.branches, verify + 1, remaining)
    if (verify, branches) == (plan.verify, plan.branches):
        return plan
    return replace(plan, verify=verify, branches=branches)


def _fit(branches: tuple[Branch, ...], trunk: int, remaining: int) -> tuple[Branch, ...]:
    """Drop or shorten branches whose drafts could never be verified within the budget."""
    fitted = []
    for branch in branches:
        if branch.parent > trunk:
            continue
        # parent p commits p tokens before the branch's drafts start; the last token is the verifier's own
        excess = max(0, branch.drafts - (remaining - 1 - branch.parent))
        if branch.drafts > excess:
            fitted.append(branch.cut(branch.masks - excess) if excess else branch)
    return tuple(fitted)
