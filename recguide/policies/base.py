"""What every policy is: a function from the state of running requests to plans, with knobs that describe themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from recguide.engine.plan import AR, Branch, RequestPlan
from recguide.engine.request import Draft, Request
from recguide.errors import RecGuideError

if TYPE_CHECKING:
    from recguide.engine.observe import Outcome
    from recguide.engine.stats import StepRecord
    from recguide.models.loader import Model


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A number a person may set. The command line, validation and sliders are all made from it."""

    takes_text: ClassVar[bool] = False
    name: str
    default: float
    low: float
    high: float
    unit: str
    help: str

    def check(self, value: Any, policy: str) -> float:
        """The value as int (or float where the default is one), or a RecGuideError naming the allowed range."""
        kind = type(self.default)
        try:
            number = kind(value)
            if kind is int and number != float(value):
                raise ValueError
        except (TypeError, ValueError):
            raise RecGuideError(f"policy {policy}: {self.name} is {value!r}, expected {kind.__name__}") from None
        if not self.low <= number <= self.high:
            raise RecGuideError(
                f"policy {policy}: {self.name} is {number}; allowed: {self.low}..{self.high} {self.unit}"
            )
        return number

    def text(self, value: Any) -> str:
        """The value as ``check`` reads it back."""
        return str(value)


BLOCK = Knob(
    name="block", default=8, low=1, high=64, unit="tokens", help="tokens per block, seed included (1: plain AR)"
)
TAIL = Knob(
    name="tail", default=0, low=0, high=16, unit="tokens", help="drafts to keep of what a rejection leaves (0: none)"
)


class Policy:
    """Base of all policies. Subclasses set ``name``, ``summary`` and ``knobs``, and plan one request at a time.

    ``needs_signals``: drafts come with their probabilities and margins. ``needs_verifier_entropy``: requests keep the
    verifier's entropy of every token committed. ``reads_step_times``: it plans with the cost table of the device.
    ``learns``: it is told what came of its plans. ``tail``: so many draft tokens may be chosen again, without a
    forward, from what a rejection leaves of a draft, where the adapter has a chain. ``fallbacks`` says in words what
    the policy has to do without (R8).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    knobs: ClassVar[tuple[Knob, ...]] = ()
    needs_signals: ClassVar[bool] = False
    needs_verifier_entropy: ClassVar[bool] = False
    reads_step_times: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    tail: int = 0
    fallbacks: tuple[str, ...] = ()

    def __init__(self, **values: Any):
        known = {knob.name: knob for knob in self.knobs}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise RecGuideError(f"policy {self.name}: unknown knob {unknown[0]!r}; known: {', '.join(known) or 'none'}")
        for name, knob in known.items():
            setattr(self, name, knob.check(values.get(name, knob.default), self.name))

    @property
    def spec(self) -> str:
        """The text form, as ``parse_policy`` reads it; the last knobs are left out where they are at default."""
        values = [getattr(self, knob.name) for knob in self.knobs]
        least = 0 if self.knobs and self.knobs[0].takes_text else 1
        while len(values) > least and values[-1] == self.knobs[len(values) - 1].default:
            values.pop()
        texts = (knob.text(value) for knob, value in zip(self.knobs, values, strict=False))
        return ":".join([self.name, *texts])

    def attach(self, model: Model) -> None:
        """Called by an engine before the policy plans for it: the place to look up what is known of the model."""

    def learn(self, step: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Called after each step it planned, where ``learns`` is set: what came of the plans."""

    def status(self) -> dict[str, Any]:
        """What it reports of itself by name, for people; nothing where it predicts nothing."""
        return {}

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        """One plan for each running request."""
        return [self.plan_request(request) for request in requests]

    def plan_request(self, request: Request) -> RequestPlan:
        raise NotImplementedError


def draft_only(request: Request, drafts: int) -> RequestPlan:
    """No trunk, one draft branch from the seed; plain AR where there is nothing to draft.

    Where the model's convention keeps the seed out of the block, its causal row comes along (and commits a token).
    """
    if not drafts:
        return AR
    if not request.seed_in_block:
        return RequestPlan(0, (continuation(request, 0, drafts),))
    return RequestPlan(None, (known(request, 0, request.tokens[-1], drafts),))


def known(request: Request, parent: int, token: int, drafts: int) -> Branch:
    """A branch that starts at a known token and drafts so many behind it."""
    return Branch(parent, token, drafts - request.draft_shift, shift=request.draft_shift)


def opened(request: Request, parent: int, drafts: int, *, loose: bool = False) -> Branch:
    """An open branch that drafts so many tokens behind the one the verifier emits at its first position."""
    return Branch(parent, None, drafts + 1 - request.draft_shift, loose=loose, shift=request.draft_shift)


def continuation(request: Request, verify: int, drafts: int) -> Branch:
    """An open branch behind the whole trunk: it assumes full acceptance."""
    return opened(request, verify + 1, drafts)


def draft_or_verify(request: Request, block: int) -> RequestPlan:
    """Verify the whole draft at hand; where there is none, draft a block behind an autoregressive row (1: plain AR)."""
    if request.draft:
        return RequestPlan(len(request.draft.tokens))
    return RequestPlan(0, (continuation(request, 0, block - 1),)) if block > 1 else AR


def correction(request: Request, draft: Draft, position: int, drafts: int) -> Branch:
    """A branch that assumes draft ``position`` (1 is the first) is rejected in favour of the second-best token."""
    return known(request, position, draft.second[position - 1], drafts)
