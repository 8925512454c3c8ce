"""Layout: what every row sees, where it stands, and that the engine's forward equals the plain model's, row by row."""

import dataclasses

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recguide.kernels.rows import groups_of

from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.layout import Segment, build_layout
from recguide.engine.plan import Branch
from tests.helpers import SMALL, random_adapter, small_model, small_weights
from tests.reference import plain_logits, rows_of

MASK = 99
GROUP_SIZE = 2


@st.composite
def segment_lists(draw, most=5):
    slots = draw(st.lists(st.integers(0, 7), min_size=1, max_size=most, unique=True))
    return [draw(segments(slot)) for slot in slots]


@st.composite
def segments(draw, slot):
    cached, prefill = draw(st.integers(0, 6)), draw(st.integers(0, 3))
    verify = draw(st.none() | st.integers(0, 4))
    trunk = 0 if verify is None else verify + 1
    tokens = tuple(draw(st.lists(st.integers(0, 12), min_size=prefill + trunk, max_size=prefill + trunk)))
    first = st.builds(Branch, st.just(0), st.integers(0, 12), st.integers(1, 4))
    later = st.builds(Branch, st.integers(1, max(trunk, 1)), st.none() | st.integers(0, 12), st.integers(1, 4))
    branches = draw(st.lists(first | later if trunk else first, min_size=int(not tokens), max_size=4))
    return Segment(slot, cached, tokens, trunk, prefill, tuple(branches))


def expected_rows(s, adapt_tokens=True):
    """(token, position, own key, keys it sees) per row, by the words of the design: causal rows, then draft rows."""
    trunk = [(t, s.cached + i, s.cached + i, set(range(s.cached + i + 1))) for i, t in enumerate(s.trunk)]
    branches, heads, key = [], [], s.cached + len(s.trunk)
    for b in s.branches:
        tokens = ([] if b.token is None else [b.token]) + [MASK] * b.masks
        start = s.cached + s.prefill + b.parent
        own = set(range(key, key + len(tokens)))
        rows = [(t, start + i, key + i, set(range(start)) | own) for i, t in enumerate(tokens)]
        if b.token is not None and not adapt_tokens:
            heads.append((b.token, start, key, {*range(start), key}))
            rows = rows[1:]
        branches += rows
        key += len(tokens)
    return trunk, heads, branches


def seen(layout):
    """Per flat row, from the groups: (slot, set of visible keys), every folded query head agreeing."""
    found = {}
    for group in groups_of(layout.attention, GROUP_SIZE):
        requests, width = group.rows.shape
        real = range(requests * width) if group.real is None else group.real.tolist()
        for place in real:
            request, column = divmod(place, width)
            visible = set(range(group.keys))
            if group.blocked is not None:
                folded = group.blocked[request, 0].view(GROUP_SIZE, width, group.keys - group.first)[:, column]
                assert (folded == folded[0]).all()
                visible -= {group.first + key for key in folded[0].nonzero()[:, 0].tolist()}
            row = int(group.rows[request, column])
            assert row not in found
            found[row] = (group.slots[request], visible)
    return found


@given(segment_lists(), st.booleans())
@settings(max_examples=200)
def test_every_row_stands_and_sees_as_defined(segments, adapt_tokens):
    layout = build_layout(segments, MASK, adapt_tokens=adapt_tokens)
    parts = [expected_rows(s, adapt_tokens) for s in segments]
    expected = [(s.slot, row) for s, (trunk, _, _) in zip(segments, parts, strict=True) for row in trunk]
    expected += [(s.slot, row) for s, (_, heads, _) in zip(segments, parts, strict=True) for row in heads]
    assert layout.first_draft_row == len(expected)
    expected += [(s.slot, row) for s, (_, _, branches) in zip(segments, parts, strict=True) for row in branches]
    visible = seen(layout)
    assert layout.rows == len(expected) == len(visible)
    for flat, (slot, (token, position, key, sees)) in enumerate(expected):
        assert (layout.tokens[flat], layout.positions[flat]) == (token, position)
        assert (layout.row_slots[flat], layout.row_keys[flat]) == (slot, key)
        assert visible[flat] == (slot, sees)


@given(segment_lists(), st.booleans())
@settings(max_examples=150)
def test_logits_are_made_for_scored_trunk_rows_and_masks(segments, adapt_tokens):
    layout = build_layout(segments, MASK, adapt_tokens=adapt_tokens)
    assert layout.all_rows_scored == (layout.logit_rows.tolist() == list(range(layout.rows)))
    assert layout.mask_rows.tolist() == (layout.tokens == MASK).nonzero()[:, 0].tolist()
    used = [
        i
        for s in [*layout.trunk_logits, *(b for bs in layout.branch_logits for b in bs)]
        for i in range(*s.indices(9999))
    ]
    assert used == list(range(len(layout.logit_rows)))
    for s, part, branches in zip(segments, layout.trunk_logits, layout.branch_logits, strict=True):
        rows = layout.logit_rows[part]
        assert layout.tokens[rows].tolist() == list(s.trunk)[len(s.trunk) - s.scored :]
        for branch, slice_ in zip(s.branches, branches, strict=True):
            start = s.cached + s.prefill + branch.parent + (branch.token is not None)
            assert layout.positions[layout.logit_rows[slice_]].tolist() == list(range(start, start + branch.masks))
            assert (layout.tokens[layout.logit_rows[slice_]] == MASK).all()


def test_requests_of_very_different_size_are_not_padded_to_the_longest():
    sizes = [1, 1, 1, 33, 40, 7]
    layout = build_layout([Segment(i, 3, (1,) * n, n) for i, n in enumerate(sizes)], MASK)
    assert sum(group.rows.numel() for group in groups_of(layout.attention, GROUP_SIZE)) < 2 * sum(sizes)


def prefilled(model, texts, slots):
    """A cache that holds the first ``len(text)`` tokens of each text, in its slot; unused places hold rubbish."""
    config = model.config
    cache = KVCache(config, 8, 64, 64, torch.float32, torch.device("cpu"))
    cache.k.normal_(generator=torch.Generator().manual_seed(5))
    cache.v.normal_(generator=torch.Generator().manual_seed(6))
    parts = [Segment(slot, 0, tuple(text), 0) for slot, text in zip(slots, texts, strict=True) if text]
    if parts:
        forward(model, cache, parts)
    return cache


def forward(model, cache, segments):
    layout = build_layout(segments, model.config.mask_id, adapt_tokens=model.adapt_tokens)
    hidden = model.backbone.forward(
        layout.tokens,
        layout.positions,
        StepAttention(cache, layout, model.config),
        first_draft_row=layout.first_draft_row,
        mask_rows=layout.mask_rows,
        adapter=model.fused_adapter,
    )
    return layout, model.backbone.logits(hidden[layout.logit_rows])


WEIGHTS = small_weights(SMALL, 3)
MODEL = small_model(weights=WEIGHTS, rank=0)
MODEL.adapter = random_adapter(MODEL, size=0.3)
MASKS_ONLY = small_model(weights=WEIGHTS, rank=0)
MASKS_ONLY.adapter = random_adapter(MASKS_ONLY, size=0.3)
MASKS_ONLY.adapter.config = dataclasses.replace(MASKS_ONLY.adapter.config, adapt_tokens=False)


def assert_equals_plain_model(segments, texts):
    for model in (MODEL, MASKS_ONLY):
        assert_equals(model, segments, texts)


def assert_equals(model, segments, texts):
    cache = prefilled(model, texts, [s.slot for s in segments])
    layout, logits = forward(model, cache, segments)
    for i, (segment, text) in enumerate(zip(segments, texts, strict=True)):
        rows, branches = rows_of(text, segment, model.adapt_tokens)
        plain = plain_logits(WEIGHTS, SMALL, model.adapter, rows)
        trunk = plain[len(text) : len(text) + len(segment.trunk)][len(segment.trunk) - segment.scored :]
        torch.testing.assert_close(logits[layout.trunk_logits[i]].double(), trunk, atol=1e-4, rtol=0)
        for part, branch, numbers in zip(layout.branch_logits[i], segment.branches, branches, strict=True):
            masks = plain[numbers[len(numbers) - branch.masks :]]
            torch.testing.assert_close(logits[part].double(), masks, atol=1e-4, rtol=0)


def test_each_kind_of_row_equals_the_plain_model():
    text = [1, 5, 2, 7]
    kinds = {
        "ar": Segment(0, 4, (3,), 1),
        "trunk": Segment(0, 4, (3, 8, 9, 1), 4),
        "prefill": Segment(0, 4, (3, 8, 9), 1, 2),
        "draft": Segment(0, 4, (), 0, 0, (Branch(0, 3, 5),)),
        "draft behind prefill": Segment(0, 4, (3, 8), 0, 2, (Branch(0, 9, 5),)),
        "correction": Segment(0, 4, (3, 8, 9), 3, 0, (Branch(1, 6, 3), Branch(2, 4, 3))),
        "open": Segment(0, 4, (3, 8, 9), 3, 0, (Branch(1, None, 3), Branch(2, None, 3))),
        "continuation": Segment(0, 4, (3, 8, 9), 3, 0, (Branch(3, None, 4),)),
    }
    for segment in kinds.values():
        assert_equals_plain_model([segment], [text])


@given(segment_lists(most=3), st.randoms(use_true_random=False))
@settings(max_examples=12)
def test_a_mixed_step_equals_the_plain_model(segments, chooser):
    assert_equals_plain_model(segments, [[chooser.randrange(13) for _ in range(s.cached)] for s in segments])


@given(segment_lists())
@settings(max_examples=60)
def test_company_and_padding_change_no_row(segments):
    """Every request gets the same logits in the mixed step as alone."""
    texts = [[(3 * s.slot + i) % 13 for i in range(s.cached)] for s in segments]
    layout, together = forward(MODEL, prefilled(MODEL, texts, [s.slot for s in segments]), segments)
    for i, (segment, text) in enumerate(zip(segments, texts, strict=True)):
        alone, logits = forward(MODEL, prefilled(MODEL, [text], [segment.slot]), [segment])
        torch.testing.assert_close(together[layout.trunk_logits[i]], logits[alone.trunk_logits[0]], atol=1e-4, rtol=0)
        for mine, theirs in zip(layout.branch_logits[i], alone.branch_logits[0], strict=True):
            torch.testing.assert_close(together[mine], logits[theirs], atol=1e-4, rtol=0)
