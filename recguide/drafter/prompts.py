"""Well-formed prompts to train a drafter on: templates with slots, filled at random.

Some slots hold real text: ``news`` (one article a line) and ``german`` (texts between lines of a single %, the format
of fortune files). The card of the shipped adapter names the packages that these came from.

    python -m recguide.drafter.prompts prompts.jsonl --news lee_background.cor --german zitate
"""

from __future__ import annotations

import json
import random
import re
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
SLOT = re.compile(r"{(\w+)}")
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Texts:
    """Real text for the slots: articles as lists of sentences, and German texts."""

    articles: list[list[str]]
    german: list[str]


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
    left = {slot: chooser.sample(values, len(values)) for slot, values in slots.items() if f"{{{slot}}}" in template}

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
        return left[slot].pop()  # no value twice in a prompt

    return SLOT.sub(value, template)


def _names(passage: str) -> list[str]:
    """Capitalised words inside sentences: people, places, organizations, as far as that tells."""
    return re.findall(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*", passage) or [passage.split()[0]]


def read_texts(news: Path, german: Path) -> Texts:
    """Raises RecGuideError where a file is missing, is no text, or has nothing of use."""
    articles = [re.split(r"(?<=[.!?]) (?=[A-Z\"])", line.strip()) for line in _read(news).splitlines() if line.strip()]
    quotes = (" ".join(part.split("\n\t\t--")[0].split()) for part in _read(german).split("\n%\n"))
    texts = Texts(articles, [q for q in quotes if 30 <= len(q) <= 300])
    for path, found in ((news, texts.articles), (german, texts.german)):
        if not found:
            raise RecGuideError(f"{path}: no text found in it")
    return texts


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
    count: Annotated[int, typer.Option(help="How many prompts.")] = 2000,
    seed: Annotated[int, typer.Option(help="Another seed, other prompts.")] = 0,
) -> None:
    """Write well-formed prompts of many kinds to train a drafter on."""
    check_writable(out)
    rows = make_prompts(count, read_texts(news, german), seed)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    run(app)
