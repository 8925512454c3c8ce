"""What the engine counts, per request and in all. Accepted and committed tokens are those kept (rule R5)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class RequestStats:
    """Counts of one request, under the names vLLM and AIPerf use where they have one.

    ``forwards`` are the backbone forwards this request took part in after its prompt; ``rows`` the query rows it paid
    for in them; forwards over nothing but prompt are ``prefill_forwards``, and count in tokens per forward only with
    ``count_prefill``. ``reached[j]`` and ``kept_at[j]`` count how often draft position j was compared and accepted.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_forwards: int = 0
    forwards: int = 0
    rows: int = 0
    num_spec_steps: int = 0
    num_steps_without_draft: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    cut_tokens: int = 0
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    kept_at: Counter[int] = field(default_factory=Counter)
    branches_drafted: Counter[str] = field(default_factory=Counter)
    branches_reused: Counter[str] = field(default_factory=Counter)
    count_prefill: bool = False

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification with the bonus token: 1 + accepted / verifications."""
        if not self.num_spec_steps:
            return None
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float | None:
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def tokens_per_forward(self) -> float | None:
        forwards = self.forwards + (self.prefill_forwards if self.count_prefill else 0)
        return self.completion_tokens / forwards if forwards else None

    @property
    def rows_per_token(self) -> float | None:
        return self.rows / self.completion_tokens if self.completion_tokens else None

    def verified(self, drafted: int, accepted: int, kept: int) -> None:
        """Count a trunk: ``drafted`` tokens proposed, ``accepted`` matched, ``kept`` of accepted + 1 committed."""
        self.completion_tokens += kept
        confirmed = min(accepted, kept)
        self.cut_tokens += confirmed + 1 - kept
        if not drafted:
            self.num_steps_without_draft += 1
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += confirmed
        self.acceptance_histogram[confirmed] += 1
        # the draft behind the accepted ones was compared and rejected, unless the text ended before it
        reached = confirmed + (kept == accepted + 1 and accepted < drafted)
        for j in range(reached):
            self.reached[j] += 1
            self.kept_at[j] += j < confirmed

    def add(self, other: RequestStats) -> None:
        """Add another request's counts to this one's."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, Counter):
                mine.update(value)
            elif isinstance(value, bool):
                setattr(self, name, mine or value)
            else:
                setattr(self, name, mine + value)

    def conditional_acceptance(self) -> list[float]:
        """P(position j accepted | reached), by draft position."""
        return [self.kept_at[j] / self.reached[j] for j in sorted(self.reached)]


PHASES = ("plan", "layout", "forward", "chain", "sampling", "accept", "other")


@dataclass
class StepRecord:
    """One step as it happened; times in seconds. ``rows`` includes prefill rows."""

    index: int
    requests: int
    rows: int
    prefill_rows: int
    draft_rows: int
    committed: int
    seconds: float
    phases: dict[str, float]


@dataclass
class EngineStats:
    """Totals since the engine was made (or since ``reset``)."""

    steps: int = 0
    committed: int = 0
    rows: int = 0
    prefill_rows: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    requests: RequestStats = field(default_factory=RequestStats)
    finished: Counter[str] = field(default_factory=Counter)

    def add(self, record: StepRecord) -> None:
        self.steps += 1
        self.committed += record.committed
        self.rows += record.rows
        self.prefill_rows += record.prefill_rows
        self.seconds += record.seconds
        for phase, spent in record.phases.items():
            self.phases[phase] += spent

    @property
    def share_outside_forward(self) -> float | None:
        """Fraction of step time spent in anything but the backbone's forward."""
        return 1 - self.phases["forward"] / self.seconds if self.seconds else None
