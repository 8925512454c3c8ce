"""Real text to make prompts of, from packages that anyone can install: news, German, WordNet, people's questions.

The card of the shipped adapter names the packages.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recguide.errors import RecGuideError

THINGS, PEOPLE, PLACES = {"05", "06", "08", "13", "17", "20", "27"}, "18", "15"  # WordNet's files, lexnames(5WN)
PASSAGES = ("schelling_point/wikipedia_5.jsonl", "schelling_point/owt_5.jsonl")  # of Wikipedia and of web pages
MOST_OF_A_SET = 18  # questions of one evaluation: they are much alike
COMMON = frozenset(re.findall("[a-z]+", "a and are be for how i in is it of on that the to was what with you"))
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-ZÄÖÜ\"])")


@dataclass(frozen=True)
class Texts:
    """Articles as lists of sentences, German texts, WordNet's words by slot, and whole questions."""

    articles: list[list[str]]
    german: list[str]
    words: dict[str, list[str]]
    questions: list[str] = field(default_factory=list)


def read_texts(
    news: Path, german: Path, wordnet: Path, evals: Path | None = None, descriptions: Path | None = None
) -> Texts:
    """``news`` has one article a line, ``german`` texts between lines of a single % (the format of fortune files),
    ``wordnet`` is the folder of data.noun and index.noun, ``evals`` the folder registry/data of OpenAI's evals, and
    ``descriptions`` a Debian archive's Translation-de.

    Raises RecGuideError where a file is missing, is no text, or has nothing of use.
    """
    articles = [SENTENCE.split(line.strip()) for line in _read(news).splitlines() if line.strip()]
    quotes = (" ".join(part.split("\n\t\t--")[0].split()) for part in _read(german).split("\n%\n"))
    quotes = [q for q in quotes if 30 <= len(q) <= 300]
    words = _words(wordnet)
    found = {news: articles, german: quotes, wordnet: all(words.values())}
    questions: list[str] = []
    if evals is not None:
        articles = articles + _passages(evals)
        questions = found[evals] = _questions(evals)
    if descriptions is not None:
        described = found[descriptions] = list(_descriptions(_read(descriptions)))
        quotes = quotes + described
    for path, of_use in found.items():
        if not of_use:
            raise RecGuideError(f"{path}: no text found in it")
    return Texts(articles, quotes, words, questions)


def _words(wordnet: Path) -> dict[str, list[str]]:
    """The slots that WordNet fills: things with a common word, and people and places by name.

    ``data.noun`` has offset, file number, n, count of words, then word and number in pairs, and the pointers;
    ``index.noun`` has word, n, ..., senses, senses found in texts, and the offset of each sense (wndb(5WN)).
    """
    files: dict[str, str] = {}  # by offset
    words: dict[str, list[str]] = {"noun": [], "someone": [], "somewhere": []}
    for fields in _entries(wordnet / "data.noun"):
        files[fields[0]] = fields[1]
        if "@i" not in fields:
            continue
        names = [name.replace("_", " ") for name in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
        if fields[1] == PEOPLE:
            words["someone"] += [name for name in names if name.count(" ") == 1][:1]
        elif fields[1] == PLACES:
            words["somewhere"].append(names[0])
    for fields in _entries(wordnet / "index.noun"):
        senses = int(fields[2])
        if int(fields[-senses - 1]) and files.get(fields[-senses]) in THINGS:
            words["noun"].append(fields[0].replace("_", " "))
    return words


def _entries(path: Path) -> Iterator[list[str]]:
    """The fields of each line behind the licence, without the gloss."""
    for line in _read(path).splitlines():
        if line.strip() and not line.startswith(" "):
            yield line.split("|")[0].split()


def _passages(evals: Path) -> list[list[str]]:
    """Sentences of each passage. A row of these files has the passage under "0", and variants of it behind."""
    passages: list[list[str]] = []
    for path in (evals / name for name in PASSAGES):
        lines = _read(path).splitlines()
        try:
            texts = [json.loads(line)["0"] for line in lines]
            passages += [SENTENCE.split(" ".join(text.split())) for text in texts]
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise RecGuideError(f"{path}: not the passages of that evaluation ({fault!r})") from None
    return passages


def _questions(evals: Path) -> list[str]:
    """What people wrote to try models on: the last message of samples in English, a few of each evaluation."""
    chooser = random.Random(0)
    questions: list[str] = []
    for folder in sorted(path for path in evals.iterdir() if path.is_dir()):
        written = sorted({text for path in folder.rglob("*.jsonl") for text in _last_messages(path) if _english(text)})
        questions += chooser.sample(written, min(len(written), MOST_OF_A_SET))
    return questions


def _last_messages(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                yield json.loads(line)["input"][-1]["content"].strip()
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # some evaluations have samples of another form


def _english(text: str) -> bool:
    if not 15 <= len(text) <= 700 or not text.isascii():
        return False
    words = re.findall("[a-z]+", text.lower())
    return len(words) >= 5 and sum(word in COMMON for word in words) >= 0.18 * len(words)


def _descriptions(text: str) -> Iterator[str]:
    """The first sentences of the paragraphs behind each heading; lists and what is said of packages are left out."""
    for entry in text.split("\n\n"):
        _, _, behind = entry.partition("Description-de: ")
        for paragraph in behind.split("\n", 1)[-1].split("\n .\n"):
            if "Paket" in paragraph or "*" in paragraph or re.search(r"^ {2}", paragraph, re.MULTILINE):
                continue
            sentences = " ".join(SENTENCE.split(" ".join(paragraph.split()))[:2])
            if 40 <= len(sentences) <= 300 and sentences.endswith("."):
                yield sentences


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise RecGuideError(f"{path}: cannot read it ({fault})") from None
