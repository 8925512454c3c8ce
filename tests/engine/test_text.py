"""Streaming text never shows half a character and adds up; stop strings are found wherever the tokens cut them."""

from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.text import StopMatcher, TextStream
from recguide.models.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
TEXT = st.text(st.sampled_from("ab é€😀\n"), max_size=12)


@st.composite
def pieces(draw):
    """A text's bytes, cut into pieces anywhere, also inside characters."""
    ids = list(draw(TEXT).encode())
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@given(pieces())
def test_streamed_pieces_add_up_and_are_whole_characters(pieces):
    stream, shown = TextStream(BYTES), ""
    for i, piece in enumerate(pieces):
        shown += stream.feed(piece)
        whole = bytes(t for p in pieces[: i + 1] for t in p).decode(errors="ignore")
        cut = len(whole.encode()) < sum(map(len, pieces[: i + 1]))
        assert shown == stream.text
        assert whole.startswith(shown) if cut or not piece else shown == whole
    assert shown + stream.finish() == bytes(t for p in pieces for t in p).decode()


@given(st.lists(st.integers(0, 299), max_size=20))
def test_bytes_that_are_no_text_come_out_in_the_end(ids):
    stream = TextStream(BYTES)
    shown = "".join(stream.feed([i]) for i in ids) + stream.finish()
    assert shown == stream.text
    assert shown.replace("\ufffd", "") == BYTES.decode(ids).replace("\ufffd", "")


def first_match(text, stops):
    """(text before, bytes to keep) at the first byte that completes a stop string."""
    data = text.encode()
    for end in range(1, len(data) + 1):
        known = data[:end].decode(errors="ignore")
        places = [known.find(s) for s in stops if s in known]
        if places:
            return end, known[: min(places)]
    return None


@given(pieces(), st.lists(st.text(st.sampled_from("ab é😀"), min_size=1, max_size=3), min_size=1, max_size=3))
def test_stops_equal_a_search_after_every_byte(pieces, stops):
    matcher, before = StopMatcher(BYTES, stops), 0
    expected = first_match(bytes(t for p in pieces for t in p).decode(), stops)
    for piece in pieces:
        found = matcher.feed(piece)
        if found is not None:
            count, text = found
            assert (before + count, text) == expected
            return
        before += len(piece)
    assert expected is None


def test_a_stop_string_behind_broken_bytes_is_found():
    matcher = StopMatcher(BYTES, ("END",))
    assert matcher.feed([0xFF, 0xC3]) is None
    assert matcher.feed(list(b"xEN")) is None
    assert matcher.feed(list(b"D!")) == (1, "\ufffd\ufffdx")
