"""Well-formed prompts to train a drafter on: templates with slots, filled at random, and questions that people wrote.

The texts come from packages (``recguide.drafter.texts``), which the card of the shipped adapter names.

    python -m recguide.drafter.prompts OUT.jsonl --news lee_background.cor --german zitate --wordnet /usr/share/wordnet
"""

from __future__ import annotations

import json
import random
import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from recguide.commands.entry import run
from recguide.drafter.texts import Texts, read_texts
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
QUESTION_SHARE = 0.45  # of the prompts, as far as there are questions
MAX_SENTENCES = {"summarization": 14, "rag": 6, "extraction": 6}
SAME = {"name", "friend", "thing"}  # the same throughout a prompt; every other slot takes a new value each time
MOST_USES = 8  # of one slot in one template
SLOT = re.compile(r"{(\w+)}")
app = typer.Typer(add_completion=False)


def make_prompts(count: int, texts: Texts, seed: int = 0) -> list[dict[str, str]]:
    """``count`` different prompts, each with its id and category."""
    chooser = random.Random(seed)
    raw = json.loads((resources.files("recguide.data") / "prompts" / "templates.json").read_text())
    asked = chooser.sample(texts.questions, min(len(texts.questions), int(QUESTION_SHARE * count)))
    prompts: dict[str, str] = dict.fromkeys(asked, "question")  # by text: no prompt twice
    tries = 0
    while len(prompts) < count:
        category = chooser.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        template = chooser.choice(raw["templates"][category])
        prompts.setdefault(_fill(template, raw["slots"], texts, category, chooser), category)
        tries += 1
        if tries > 20 * count:
            raise RecGuideError(f"the templates gave only {len(prompts)} different prompts; ask for fewer")
    mixed = chooser.sample(list(prompts.items()), count)
    return [{"id": f"{c}-{n}", "category": c, "prompt": text} for n, (text, c) in enumerate(mixed)]


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


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="JSONL file to write, for train-drafter --prompts.")],
    news: Annotated[Path, typer.Option(help="English articles, one a line.")],
    german: Annotated[Path, typer.Option(help="German texts between lines of a single %.")],
    wordnet: Annotated[Path, typer.Option(help="Folder of WordNet's data.noun and index.noun.")],
    evals: Annotated[
        Path | None, typer.Option(help="Folder registry/data of OpenAI's evals: its questions, and passages to read.")
    ] = None,
    descriptions: Annotated[
        Path | None, typer.Option(help="A Debian archive's Translation-de, unpacked: more German.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many prompts.")] = 2000,
    seed: Annotated[int, typer.Option(help="Another seed, other prompts.")] = 0,
) -> None:
    """Write well-formed prompts of many kinds to train a drafter on."""
    check_writable(out)
    rows = make_prompts(count, read_texts(news, german, wordnet, evals, descriptions), seed)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    run(app)
