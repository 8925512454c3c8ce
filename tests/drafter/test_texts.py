"""Real text from packages: what is read, what is left out, and what is wrong with a file."""

import json

import pytest

from recguide.drafter.texts import MOST_OF_A_SET, read_texts
from recguide.errors import RecGuideError

DESCRIPTIONS = """Package: 0ad
Description-md5: d943
Description-de: Echtzeit-Strategiespiel
 Ein freies Spiel über antike Kriegsführung, das viele Leute
 mögen. Es ist sehr schön. Ein dritter Satz.
 .
 Dieses Paket enthält die wichtigsten Dateien, die man dafür braucht.
 .
  * eine Liste, die kein Satz ist, auch wenn sie mit einem Punkt endet.

Package: zwei
Description-de: kurz
 Zu kurz.
"""


def sample(text):
    return json.dumps({"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]})


@pytest.fixture
def evals(tmp_path):
    folder = tmp_path / "evals"
    for name in ("riddles", "schelling_point", "other"):
        (folder / name).mkdir(parents=True)
    rows = [sample(f"What is the sum of {n} and the number that you like?") for n in range(40)]
    (folder / "riddles" / "samples.jsonl").write_text(
        "\n".join([*rows, rows[0], "not json", '{"input": 3}', sample("x")])
    )
    (folder / "other" / "more.jsonl").write_text(sample("Was ist die Summe von allen Zahlen hier?"))
    for name in ("wikipedia_5", "owt_5"):
        passage = {"0": f"This is {name}.\nIt has two sentences.", "1": "A variant. That counts not."}
        (folder / "schelling_point" / f"{name}.jsonl").write_text(json.dumps(passage) + "\n")
    return folder


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


def test_questions_are_english_and_a_few_of_each_evaluation(files, evals):
    questions = read_texts(*files, evals=evals).questions
    assert len(questions) == len(set(questions)) == MOST_OF_A_SET
    assert all(q.startswith("What is the sum of") for q in questions)
    assert read_texts(*files).questions == []


def test_passages_come_behind_the_news(files, evals):
    articles = read_texts(*files, evals=evals).articles
    assert articles[3:] == [[f"This is {n}.", "It has two sentences."] for n in ("wikipedia_5", "owt_5")]


def test_descriptions_are_the_first_two_sentences_of_plain_paragraphs(files, tmp_path):
    (tmp_path / "de").write_text(DESCRIPTIONS)
    german = read_texts(*files, descriptions=tmp_path / "de").german
    assert german[2:] == ["Ein freies Spiel über antike Kriegsführung, das viele Leute mögen. Es ist sehr schön."]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_text_is_named(files, tmp_path, content):
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_bytes(content)
    for place in range(3):
        with pytest.raises(RecGuideError, match=r"bad(/data.noun)?: "):
            read_texts(*files[:place], bad, *files[place + 1 :])


def test_optional_sources_are_checked_too(files, tmp_path, evals):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecGuideError, match=r"^\S+wikipedia_5\.jsonl: cannot read it"):
        read_texts(*files, evals=tmp_path / "empty")
    (evals / "schelling_point" / "owt_5.jsonl").write_text('{"text": "no passage"}\n')
    with pytest.raises(RecGuideError, match=r"owt_5\.jsonl: not the passages"):
        read_texts(*files, evals=evals)
    (tmp_path / "de").write_text("Package: none\n")
    with pytest.raises(RecGuideError, match="de: no text found in it"):
        read_texts(*files, descriptions=tmp_path / "de")
