"""A request: one prompt being continued, and everything the engine remembers of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recguide.engine.sampling import SamplingParams
from recguide.engine.stats import RequestStats
from recguide.engine.text import StopMatcher
from recguide.errors import RecGuideError
from recguide.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from recguide.models.chain import Chained


@dataclass(slots=True)
class Draft:
    """Draft tokens behind the seed, and what the draft logits said of them (lists of equal length, or empty).

    ``kind`` is the branch they came from: draft, correction, open or continuation; or tail, where they are what a
    rejection left of such a draft, chosen anew. A draft without tokens says that drafting was tried and nothing usable
    came of it: verifying it is a plain AR step. ``chained`` is what the adapter's chain chose the last tokens from.
    """

    tokens: list[int]
    kind: str = "draft"
    top1: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    chained: Chained | None = None


@dataclass(eq=False)
class Request:
    """``tokens`` is prompt and output; the last one is the seed. ``draft`` is what the next trunk may verify; ``known``
    is what a drafting of several forwards has revealed so far (None: still masked), before it is a draft.

    ``verifier_entropy``: nats of the distribution each token was drawn from, for those committed under a policy that
    asks for it.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    eos_ids: frozenset[int]
    limit: int
    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    draft: Draft | None = None
    known: list[int | None] = field(default_factory=list)
    accepted_history: list[tuple[int, int]] = field(default_factory=list)
    memory: dict[str, object] = field(default_factory=dict)
    seed_in_block: bool = True
    draft_shift: int = 0
    logprobs: list[float] = field(default_factory=list)
    filtered_logprobs: list[float] = field(default_factory=list)
    verifier_entropy: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    stop_text: str | None = None
    stop_matcher: StopMatcher | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    submitted_at: float = 0.0
    first_token_at: float | None = None
    finished_at: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.stats.prompt_tokens = len(self.prompt)

    @property
    def output(self) -> list[int]:
        """Kept tokens of the answer."""
        return self.tokens[len(self.prompt) :]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed (``limit`` is the total, prompt included)."""
        return self.limit - len(self.tokens)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def text(self, tokenizer: Tokenizer) -> str:
        """The answer's text, ending before a matched stop string."""
        return tokenizer.decode(self.output) if self.stop_text is None else self.stop_text


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one request: kept tokens, and the reason if it ended."""

    request: Request
    tokens: list[int]
    finish_reason: str | None


def raise_failed(requests: Sequence[Request]) -> None:
    """RecGuideError for the first request that ended in an error."""
    for request in requests:
        if request.error is not None:
            raise RecGuideError(f"request {request.id}: {request.error}")
