"""Dialogues to train on: the model answers given prompts, or user turns that it wrote itself from openers.

A self-made user turn is sampled inside the model's chat template. The answer is greedy (a small share is sampled, since
users sample too). Dialogues are appended to a JSONL file as they finish: an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path

from recguide.bench.prompts import Prompt
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
    """Append self-made dialogues to ``path`` until it holds ``count``. ``progress`` gets (dialogues, answer tokens)."""
    have = read_dialogues(path)
    if len(have) < count:
        _append(path, have, islice(_make(model, settings, first=len(have)), count - len(have)), progress)


def write_answers(
    model: Model,
    path: Path,
    prompts: Sequence[Prompt],
    settings: DialogueSettings,
    progress: Callable[[int, int], None],
) -> None:
    """Append the model's answers to those of ``prompts`` that ``path`` does not hold yet; prompts that leave no room
    for an answer are left out."""
    have = read_dialogues(path)
    done = {tuple(d.prompt) for d in have}
    _append(path, have, _answer(model, prompts, done, settings), progress)


def _append(path: Path, have: list[Dialogue], more: Iterator[Dialogue], progress: Callable[[int, int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(_line, have)))  # without a line that a kill cut short
    done, tokens = len(have), sum(len(d.answer) for d in have)
    with path.open("a") as stream:
        for dialogue in more:
            stream.write(_line(dialogue))
            stream.flush()
            done, tokens = done + 1, tokens + len(dialogue.answer)
            progress(done, tokens)


def _line(dialogue: Dialogue) -> str:
    return json.dumps(vars(dialogue)) + "\n"


def _engine(model: Model, settings: DialogueSettings) -> Engine:
    return Engine(model, "ar", max_concurrency=settings.concurrency, max_context=min(1024, model.config.max_positions))


def _answer(
    model: Model, prompts: Sequence[Prompt], done: set[tuple[int, ...]], settings: DialogueSettings
) -> Iterator[Dialogue]:
    engine = _engine(model, settings)
    chooser = random.Random(settings.seed)
    categories = {}
    for prompt in prompts:
        ids = model.tokenizer.chat(prompt.as_messages())
        params = _answer_params(settings, chooser)  # drawn for prompts that are done too: a resumed run goes on alike
        if tuple(ids) not in done and len(ids) + settings.answer_tokens <= engine.max_context:
            categories[engine.submit(ids, params).id] = prompt.category
    while engine.waiting or engine.running:
        for delta in engine.step():
            request = delta.request
            if delta.finish_reason is not None:
                yield Dialogue(request.prompt, request.output, categories[request.id])


def _make(model: Model, settings: DialogueSettings, first: int) -> Iterator[Dialogue]:
    """Dialogues without end, many at a time; numbered from ``first`` so that a resumed run does not repeat itself."""
    engine = _engine(model, settings)
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
            else:
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
    turn = user.tokens[len(_user_prefix(engine.model, "")) :]  # before the ends are left out: the prefix has some too
    text = tokenizer.decode([t for t in turn if t not in user.eos_ids])
    if not text.strip():
        return None
    params = _answer_params(settings, chooser)
    prompt = tokenizer.chat([{"role": "user", "content": text}])
    if len(prompt) + settings.answer_tokens > engine.max_context:
        return None  # text that the tokenizer writes longer than the model did
    return engine.submit(prompt, params)


def _answer_params(settings: DialogueSettings, chooser: random.Random) -> SamplingParams:
    temperature = 0.8 if chooser.random() < SAMPLED_SHARE else 0.0
    return SamplingParams(max_new_tokens=settings.answer_tokens, temperature=temperature, seed=chooser.randrange(2**31))
