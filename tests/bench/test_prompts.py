"""Prompt files: every accepted shape, every fault with its place, and the sets that ship with the package."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.bench.prompts import Prompt, default_set, fingerprint, load_prompts
from recguide.errors import RecGuideError

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is ice slippery?"}]


@pytest.fixture
def save(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def lines(*values):
    return "\n".join(map(json.dumps, values))


SHAPES = [
    ("Why?", Prompt("line-1", text="Why?")),
    ({"prompt": "Why?"}, Prompt("line-1", text="Why?")),
    ({"prompt": "Why?", "id": 7, "category": "qa"}, Prompt("7", "qa", text="Why?")),
    ({"messages": CHAT, "id": "ice"}, Prompt("ice", messages=tuple(CHAT))),
    (
        {"question_id": 81, "category": "writing", "turns": ["One.", "Two."]},
        Prompt("81", "writing", messages=({"role": "user", "content": "One."},)),
    ),
]


@pytest.mark.parametrize(("value", "prompt"), SHAPES)
def test_every_shape_is_read(save, value, prompt):
    assert load_prompts(save("one.jsonl", lines(value))) == [prompt]


def test_json_holds_a_list_or_one_value(save):
    values = [value for value, _ in SHAPES]
    listed = load_prompts(save("list.json", json.dumps(values[1:], indent=2)))
    assert [prompt.as_messages()[-1] for prompt in listed[2:]] == [CHAT[1], {"role": "user", "content": "One."}]
    assert listed[0].id == "item-1"
    assert load_prompts(save("one.json", json.dumps(values[3]))) == [SHAPES[3][1]]


def test_text_file_has_a_prompt_on_each_line(save):
    read = load_prompts(save("some.txt", "First\r\n\n  \nSecond, with a space \n"))
    assert read == [Prompt("line-1", text="First"), Prompt("line-4", text="Second, with a space ")]


def test_byte_order_mark_and_blank_lines_are_skipped(save):
    assert len(load_prompts(save("bom.jsonl", b'\xef\xbb\xbf"one"\n\n"two"\n'))) == 2


FAULTS = [
    ("empty.txt", "", "no prompts in this file"),
    ("empty.jsonl", "\n \n", "no prompts in this file"),
    ("empty.json", "", "no prompts in this file"),
    ("empty.json", "[]", "no prompts in this file"),
    ("bad.jsonl", '"fine"\n\n{"prompt": ', "line 3: bad JSON"),
    ("bad.json", '[\n"fine",\n{"prompt" 1}]', "line 3: bad JSON"),
    ("lines.json", '"one"\n"two"', "name it .jsonl"),
    ("shape.jsonl", '"fine"\n{"question": "x"}', 'line 2: unknown shape; a prompt is a string, {"prompt"'),
    ("shape.jsonl", "17", "line 1: unknown shape"),
    ("shape.json", '["fine", null]', "item 2: unknown shape"),
    ("shape.jsonl", '{"prompt": "x", "turns": ["x"]}', "line 1: prompt and turns together"),
    ("shape.jsonl", '{"prompt": 3}', "line 1: the text of a prompt must be a string, got int"),
    ("shape.jsonl", '{"messages": "hi"}', "line 1: messages must be a list"),
    ("shape.jsonl", '{"messages": [{"role": "robot", "content": "x"}]}', "line 1: role must be one of system"),
    ("shape.jsonl", '{"turns": "hi"}', "line 1: turns must be a list of strings, got str"),
    ("blank.jsonl", '"fine"\n" "', "line 2: empty prompt"),
    ("blank.jsonl", '{"messages": []}', "line 1: empty prompt"),
    ("blank.jsonl", '{"turns": []}', "line 1: empty prompt"),
    ("blank.jsonl", '{"messages": [{"role": "user", "content": ""}]}', "line 1: empty prompt"),
    ("half.jsonl", '"\\ud83d"', "line 1: half of a surrogate pair"),
    ("twice.jsonl", '{"id": 1, "prompt": "x"}\n{"id": "1", "prompt": "y"}', "two prompts have the id '1'"),
    ("latin.txt", b"caf\xe9", "not UTF-8 text (byte 3)"),
    ("prompts.csv", "x", "cannot tell the format from '.csv'"),
]


@pytest.mark.parametrize(("name", "content", "message"), FAULTS)
def test_fault_is_one_line_with_its_place(save, name, content, message):
    path = save(name, content)
    with pytest.raises(RecGuideError) as caught:
        load_prompts(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(RecGuideError, match=r"none\.txt: no such file"):
        load_prompts(tmp_path / "none.txt")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(RecGuideError, match=r"folder\.txt: cannot be read"):
        load_prompts(tmp_path / "folder.txt")


def test_limit_takes_the_first_and_reads_no_further(save):
    path = save("some.jsonl", '"one"\n"two"\nnot JSON')
    assert [prompt.text for prompt in load_prompts(path, limit=2)] == ["one", "two"]
    with pytest.raises(RecGuideError, match="limit must be 1 or more, got 0"):
        load_prompts(path, limit=0)


@pytest.mark.parametrize("given_twice", [{}, {"messages": tuple(CHAT), "text": "x"}])
def test_prompt_is_a_chat_or_a_text(given_twice):
    with pytest.raises(RecGuideError, match="either messages or text"):
        Prompt("x", **given_twice)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(texts, min_size=1), st.booleans())
def test_any_text_survives_a_jsonl_file(tmp_path_factory, prompts, escaped):
    path = tmp_path_factory.mktemp("round") / "some.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}, ensure_ascii=escaped) for text in prompts), "utf-8")
    assert [prompt.text for prompt in load_prompts(path)] == prompts


chats = st.builds(Prompt, st.text(), st.none() | st.text(), st.none(), texts)


@given(st.lists(chats), st.lists(chats))
def test_fingerprint_tells_sets_apart(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (one == other)


def test_fingerprint_is_stable():
    assert fingerprint([Prompt("1", "qa", text="Why?")]) == fingerprint([Prompt("1", "qa", text="Why?")])
    assert fingerprint([]) == "4f53cda18c2baa0c"  # sha256 of "[]": the same on every machine and release


def test_as_messages_gives_a_copy():
    chat = Prompt("1", messages=tuple(CHAT))
    chat.as_messages()[0]["content"] = "changed"
    assert chat.as_messages() == CHAT
    assert Prompt("2", text="Why?").as_messages() == [{"role": "user", "content": "Why?"}]


def test_default_set_is_varied_and_well_formed():
    prompts = load_prompts()
    counts = Counter(prompt.category for prompt in prompts)
    kinds = {"writing", "coding", "math", "extraction", "qa", "reasoning", "translation", "summarization", "rag"}
    assert set(counts) == kinds and min(counts.values()) >= 4
    with_passage = [prompt for prompt in prompts if prompt.category in ("summarization", "rag")]
    assert all(150 <= len(prompt.as_messages()[0]["content"].split()) <= 300 for prompt in with_passage)


def test_openers_are_short_and_differ():
    text = (default_set().parent / "openers.jsonl").read_text(encoding="utf-8")
    openers = [json.loads(line) for line in text.splitlines()]
    assert all(set(opener) == {"category", "text"} for opener in openers)
    started = [opener["text"] for opener in openers if opener["text"]]  # a bare one may be repeated, as its weight
    assert len(started) == len(set(started)) < len(openers)
    assert max(len(text.split()) for text in started) <= 13
