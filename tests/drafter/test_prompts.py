"""Prompts from templates: well formed, of every kind, never twice, the same for the same seed."""

import json
import re

import pytest

from recguide.bench.prompts import load_prompts
from recguide.drafter import prompts as prompts_module
from recguide.drafter.prompts import WEIGHTS, Texts, main, make_prompts, read_texts
from recguide.errors import RecGuideError

NEWS = "The mayor of Springfield said on Monday that the bridge is safe. Engineers from Boston agreed. It opens soon.\n"
GERMAN = """Wer zuletzt lacht, lacht am besten, sagt man.
\t\t-- Sprichwort
%
Zu kurz
%
Ein zweiter Satz, der lang genug
ist.
"""
DATA = """  1 This is a licence of several lines
02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 001 @ 02083346 n 0000 | a member of the genus Canis
03001627 06 n 01 chair 0 001 @ 04161981 n 0000 | a seat for one person
02084732 05 n 01 pooch 0 001 @ 02084071 n 0000 | informal terms for dogs
10954498 18 n 02 Einstein 0 Albert_Einstein 0 001 @i 10428004 n 0000 | physicist born in Germany
10951459 18 n 01 Plato 0 001 @i 10423589 n 0000 | ancient Athenian philosopher
10954499 18 n 02 Curie 0 Marie_Curie 0 001 @i 10428004 n 0000 | French chemist (born in Poland)
08691669 15 n 01 Marrakesh 0 001 @i 08524735 n 0000 | a city in Morocco
08691670 15 n 02 New_York 0 001 @i 08524735 n 0000 | a city
00001930 03 n 01 physical_entity 0 001 @ 00001740 n 0000 | an entity that has physical existence
"""
INDEX = """  1 This is a licence of several lines
chair n 2 3 @ ~ #p 2 1 03001627 00599992
dog n 1 3 @ ~ #m 1 1 02084071
physical_entity n 1 2 @ ~ 1 1 00001930
pooch n 1 1 @ 1 0 02084732
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "wordnet").mkdir()
    (tmp_path / "wordnet" / "data.noun").write_text(DATA)
    (tmp_path / "wordnet" / "index.noun").write_text(INDEX)
    (tmp_path / "news").write_text(NEWS * 3)
    (tmp_path / "german").write_text(GERMAN)
    return tmp_path / "news", tmp_path / "german", tmp_path / "wordnet"


@pytest.fixture
def texts(files):
    return read_texts(*files)


def test_texts_are_read_without_their_sources(texts):
    assert texts.german == ["Wer zuletzt lacht, lacht am besten, sagt man.", "Ein zweiter Satz, der lang genug ist."]
    assert [len(article) for article in texts.articles] == [3, 3, 3]


def test_words_are_common_things_and_people_and_places_by_name(texts):
    assert texts.words == {
        "noun": ["chair", "dog"],
        "someone": ["Albert Einstein", "Marie Curie"],
        "somewhere": ["Marrakesh", "New York"],
    }


def test_a_person_has_one_name_throughout_a_prompt(texts):
    buyers = [p["prompt"] for p in make_prompts(600, texts) if "pays with a $100 bill" in p["prompt"]]
    assert buyers
    for text in buyers:
        first, second = re.search(r"each\. (.*) buys .* change does (.*) get", text).groups()
        assert first == second


def test_no_slot_stays_empty_and_no_prompt_comes_twice(texts):
    prompts = make_prompts(400, texts, seed=3)
    assert len({p["prompt"] for p in prompts}) == 400
    assert not [p for p in prompts if re.search(r"[{}]", p["prompt"])]
    assert {p["category"] for p in prompts} == set(WEIGHTS)
    assert len({p["id"] for p in prompts}) == 400


def test_a_seed_says_it_all(texts):
    assert make_prompts(60, texts, seed=1) == make_prompts(60, texts, seed=1) != make_prompts(60, texts, seed=2)


def test_a_value_is_used_once_in_a_prompt(texts):
    relations = [p["prompt"] for p in make_prompts(600, texts) if "and how does it relate to" in p["prompt"]]
    assert relations
    for text in relations:
        first, second = re.fullmatch(r"What is (.*), and how does it relate to (.*)\?", text).groups()
        assert first != second


def test_the_file_is_one_that_other_commands_read(tmp_path, files):
    main(tmp_path / "prompts.jsonl", *files, count=30, seed=0)
    read = load_prompts(tmp_path / "prompts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert [p.category for p in read] == [row["category"] for row in rows]
    assert len(read) == 30


def test_more_prompts_than_there_are_is_told(monkeypatch):
    monkeypatch.setattr(prompts_module, "WEIGHTS", {"translation": 1})
    with pytest.raises(RecGuideError, match="only 1 different prompts; ask for fewer"):
        make_prompts(3, Texts([["One."]], ["Zwei."], {}))


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_text_is_named(files, tmp_path, content):
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_bytes(content)
    for place in range(3):
        with pytest.raises(RecGuideError, match=r"bad(/data.noun)?: "):
            read_texts(*files[:place], bad, *files[place + 1 :])
