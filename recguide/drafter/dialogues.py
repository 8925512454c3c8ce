"""Self-made dialogues: the model writes user turns from openers, then answers them.

The user turn is sampled inside the model's chat template, the answer is greedy (a small share is sampled, since users
sample too). Dialogues are appended to a JSONL file as they finish, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from recguide.engine.engine import Engine
from recguide.engine.request import Request
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models.loader import Model

LONG = frozenset({"summarization", "rag", "extraction", "translation"})
SAMPLED_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class DialogueSettings:
    """Sizes in tokens. ``long_user_tokens`` is for categories whose user turn carries a passage. Runs of
    another ``seed`` write other dialogues."""

    user_tokens: int = 60
    long_user_tokens: int = 220
    answer_tokens: int = 160
    concurrency: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Dialogue:
    """A prompt ready for the assistant, and the model's own answer."""

    prompt: list[int]
    answer: list[int]
    category: str


def openers() -> list[dict[str, str]]:
    text = (resources.files("recguide.data") / "prompts" / "openers.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def read_dialogues(path: Path) -> list[Dialogue]:
    """All whole lines of a dialogue file; a last line cut short by a kill is left out."""
    dialogues = []
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            dialogues.append(Dialogue(row["prompt"], row["answer"], row["category"]))
        except (json.JSONDecodeError, KeyError, TypeError):
            if number == len(lines):
                break
            raise RecGuideError(f"{path}:{number}: not a dialogue; expected prompt, answer and category") from None
    return dialogues


def write_dialogues(
    model: Model, path: Path, count: int, settings: DialogueSettings, progress: Callable[[int, int], None]
) -> None:
    """Append dialogues to ``path`` until it holds ``count``. ``progress`` gets (dialogues, answer tokens) so far."""
    have = read_dialogues(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(_line, have)))
    done, tokens = len(have), sum(len(d.answer) for d in have)
    if done >= count:
        return
    with path.open("a") as stream:
        for dialogue in _make(model, settings, first=done):
            stream.write(_line(dialogue))
            stream.flush()
            done, tokens = done + 1, tokens + len(dialogue.answer)
            progress(done, tokens)
            if done >= count:
                return


def _line(dialogue: Dialogue) -> str:
    return json.dumps(vars(dialogue)) + "\n"


def _make(model: Model, settings: DialogueSettings, first: int) -> Iterator[Dialogue]:
    """Dialogues without end, many at a time; numbered from ``first`` so that a resumed run does not repeat itself."""
    engine = Engine(
        model, "ar", max_concurrency=settings.concurrency, max_context=min(1024, model.config.max_positions)
    )
    chooser = random.Random(f"{settings.seed}/{first}")
    choices, categories, users = openers(), {}, set()
    while True:
        while len(engine.waiting) + len(engine.running) < settings.concurrency:
            opener = chooser.choice(choices)
            request = _start_user_turn(engine, opener, settings, chooser.randrange(2**31))
            categories[request.id] = opener["category"]
            users.add(request.id)
        for delta in engine.step():
            request = delta.request
            if delta.finish_reason is None:
                continue
            category = categories.pop(request.id)
            if request.id in users:
                users.discard(request.id)
                answer = _start_answer(engine, request, settings, chooser)
                if answer:
                    categories[answer.id] = category
            elif len(request.output) >= 8:
                yield Dialogue(request.prompt, request.output, category)


def _start_user_turn(engine: Engine, opener: dict[str, str], settings: DialogueSettings, seed: int) -> Request:
    size = settings.long_user_tokens if opener["category"] in LONG else settings.user_tokens
    params = SamplingParams(max_new_tokens=size, temperature=0.9, top_p=0.95, seed=seed)
    return engine.submit(_user_prefix(engine.model, opener["text"]), params)


def _user_prefix(model: Model, opener: str) -> list[int]:
    """The chat template up to the inside of the user turn."""
    marker = "\x00"
    ids = model.tokenizer.chat([{"role": "user", "content": marker}], generation_prompt=False)
    cut = ids.index(model.tokenizer.encode(marker)[0])
    return ids[:cut] + model.tokenizer.encode(opener)


def _start_answer(engine: Engine, user: Request, settings: DialogueSettings, chooser: random.Random) -> Request | None:
    tokenizer = engine.model.tokenizer
    text = tokenizer.decode([t for t in user.tokens if t not in user.eos_ids][len(_user_prefix(engine.model, "")) :])
    if not text.strip():
        return None
    temperature = 0.8 if chooser.random() < SAMPLED_SHARE else 0.0
    params = SamplingParams(
        max_new_tokens=settings.answer_tokens, temperature=temperature, seed=chooser.randrange(2**31)
    )
    prompt = tokenizer.chat([{"role": "user", "content": text}])
    if len(prompt) + settings.answer_tokens > engine.max_context:
        return None  # text that the tokenizer writes longer than the model did
    return engine.submit(prompt, params)
