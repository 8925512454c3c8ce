"""Well-formed prompts to train a drafter on: templates with slots, filled at random.

Some slots hold real text: ``news`` (one article a line), ``german`` (texts between lines of a single %, the format of
fortune files), and the nouns, people and places of WordNet. The card of the shipped adapter names the packages that
these came from.

    python -m recguide.drafter.prompts OUT.jsonl --news lee_background.cor --german zitate --wordnet /usr/share/wordnet
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from recguide.commands.entry import run
from recguide.errors import RecGuideError
from recguide.provenance import check_writable

WEIGHTS = {
    "qa": 16,
    "math_reasoning": 16,
    "translation": 14,
    "summarization": 12,
    "rag": 10,
    "writing": 5,
    "roleplay": 4,
    "reasoning": 3,
    "math": 4,
    "coding": 5,
    "extraction": 3,
    "stem": 4,
    "humanities": 4,
    "advice": 3,
}
"""How often each category is asked for."""
MAX_SENTENCES = {"summarization": 14, "rag": 6, "extraction": 6}
SAME = {"name", "friend", "thing"}  # the same throughout a prompt; every other slot takes a new value each time
MOST_USES = 8  # of one slot in one template
THINGS, PEOPLE, PLACES = {"05", "06", "08", "13", "17", "20", "27"}, "18", "15"  # WordNet's files, lexnames(5WN)
SLOT = re.compile(r"{(\w+)}")
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Texts:
    """Real text for the slots: articles as lists of sentences, German texts, and WordNet's words by slot."""

    articles: list[list[str]]
    german: list[str]
    words: dict[str, list[str]]


def make_prompts(count: int, texts: Texts, seed: int = 0) -> list[dict[str, str]]:
    """``count`` different prompts, each with its id and category."""
    chooser = random.Random(seed)
    raw = json.loads((resources.files("recguide.data") / "prompts" / "templates.json").read_text())
    prompts: dict[str, str] = {}  # by text: no prompt twice
    tries = 0
    while len(prompts) < count:
        category = chooser.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        template = chooser.choice(raw["templates"][category])
        prompts.setdefault(_fill(template, raw["slots"], texts, category, chooser), category)
        tries += 1
        if tries > 20 * count:
            raise RecGuideError(f"the templates gave only {len(prompts)} different prompts; ask for fewer")
    return [{"id": f"{c}-{n}", "category": c, "prompt": text} for n, (text, c) in enumerate(prompts.items())]


def _fill(template: str, slots: dict[str, list[str]], texts: Texts, category: str, chooser: random.Random) -> str:
    passages: list[str] = []
    values = slots | texts.words
    used = [slot for slot in values if f"{{{slot}}}" in template]
    left = {slot: chooser.sample(values[slot], min(len(values[slot]), MOST_USES)) for slot in used}

    def value(match: re.Match[str]) -> str:
        slot = match[1]
        if slot == "german":
            return chooser.choice(texts.german)
        if slot in ("passage", "sentences"):
            most = MAX_SENTENCES.get(category, 3) if slot == "passage" else 3
            passages.append(" ".join(chooser.choice(texts.articles)[: chooser.randint(2, most)]))
            return passages[-1]
        if slot == "name_in_passage":
            return chooser.choice(_names(chooser.choice(passages)))
        return left[slot][-1] if slot in SAME else left[slot].pop()

    return SLOT.sub(value, template)


def _names(passage: str) -> list[str]:
    """Capitalised words inside sentences: people, places, organizations, as far as that tells."""
    return re.findall(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*", passage) or [passage.split()[0]]


def read_texts(news: Path, german: Path, wordnet: Path) -> Texts:
    """Raises RecGuideError where a file is missing, is no text, or has nothing of use."""
    articles = [re.split(r"(?<=[.!?]) (?=[A-Z\"])", line.strip()) for line in _read(news).splitlines() if line.strip()]
    quotes = (" ".join(part.split("\n\t\t--")[0].split()) for part in _read(german).split("\n%\n"))
    words = _words(wordnet)
    texts = Texts(articles, [q for q in quotes if 30 <= len(q) <= 300], words)
    for path, found in ((news, texts.articles), (german, texts.german), (wordnet, all(words.values()))):
        if not found:
            raise RecGuideError(f"{path}: no text found in it")
    return texts


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


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as fault:
        raise RecGuideError(f"{path}: cannot read it ({fault})") from None


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="JSONL file to write, for train-drafter --prompts.")],
    news: Annotated[Path, typer.Option(help="English articles, one a line.")],
    german: Annotated[Path, typer.Option(help="German texts between lines of a single %.")],
    wordnet: Annotated[Path, typer.Option(help="Folder of WordNet's data.noun and index.noun.")],
    count: Annotated[int, typer.Option(help="How many prompts.")] = 2000,
    seed: Annotated[int, typer.Option(help="Another seed, other prompts.")] = 0,
) -> None:
    """Write well-formed prompts of many kinds to train a drafter on."""
    check_writable(out)
    rows = make_prompts(count, read_texts(news, german, wordnet), seed)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    run(app)
