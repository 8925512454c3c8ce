"""Steps as every policy makes them, drawn by hypothesis: ragged requests, empty branches, one-row trunks, prompts."""

from __future__ import annotations

from hypothesis import strategies as st
from recguide.kernels.rows import StepRows

from recguide.engine.layout import Segment, build_layout
from recguide.engine.plan import Branch

TOKEN = st.integers(0, 12)


@st.composite
def branches(draw, kind: str, verify: int, block: int) -> tuple[Branch, ...]:
    """The branches that ride along with a trunk that verifies ``verify`` drafts."""
    match kind:
        case "ar-row":
            return (Branch(verify + 1, None, block),)
        case "quadratic":
            return tuple(Branch(p, None, block, loose=True) for p in range(1, verify + 2))
        case "overlap":
            parents = draw(st.lists(st.integers(1, max(verify, 1)), max_size=2, unique=True))
            corrections = tuple(Branch(p, draw(TOKEN), block) for p in sorted(parents))
            return (*corrections, *(draw(st.booleans()) * (Branch(verify + 1, None, block),)))
        case "shifted":
            return (Branch(verify + 1, draw(TOKEN), block, shift=1),)
    return ()


KINDS = ("ar", "draft", "verify", "ar-row", "quadratic", "overlap", "shifted", "prompt")


@st.composite
def segments(draw, slot: int, most_cached: int = 40) -> Segment:
    """One request of a step under one policy's kind of plan."""
    kind, block = draw(st.sampled_from(KINDS)), draw(st.integers(1, 5))
    cached, prefill = draw(st.integers(0, most_cached)), draw(st.integers(0, 3))
    if kind == "prompt":
        rows = draw(st.integers(1, 20))
        return Segment(slot, cached, (1,) * rows, 0)
    if kind == "draft":
        return Segment(slot, cached, (1,) * prefill, 0, prefill, (Branch(0, draw(TOKEN), block),))
    verify = 0 if kind in ("ar", "ar-row") else draw(st.integers(0, 4))
    trunk = (1,) * (prefill + verify + 1)
    return Segment(slot, cached, trunk, verify + 1, prefill, draw(branches(kind, verify, block)))


@st.composite
def steps(draw, most: int = 3, most_cached: int = 40) -> StepRows:
    """A step's rows as the engine lays them out; slots in any order, not neighbours."""
    slots = draw(st.lists(st.integers(0, 4), min_size=1, max_size=most, unique=True))
    drawn = [draw(segments(slot, most_cached)) for slot in slots]
    return build_layout(drawn, 99, adapt_tokens=draw(st.booleans())).attention
