"""Prompt sets: one file in, a list of prompts out, and a fingerprint that says which set a number was measured on.

A file is ``.txt`` (a prompt on each line), ``.jsonl`` (a JSON value on each line) or ``.json`` (one value, or a list).
A value is a string, ``{"prompt": ...}``, ``{"messages": [...]}`` or Spec-Bench's ``{"turns": [...]}``, of which the
first turn counts. Knows nothing of chat templates or tokens. Try it with ``python -m pytest tests/bench``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import Any

from recguide.errors import RecGuideError

SHAPES = 'a string, {"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or {"turns": ["..."]}'
KINDS = ("prompt", "messages", "turns")
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Prompt:
    """Either chat ``messages``, which a chat template turns into tokens, or a raw ``text`` to be continued."""

    id: str
    category: str | None = None
    messages: tuple[dict, ...] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.text is None):
            raise RecGuideError(f"prompt {self.id!r}: give either messages or text")

    def as_messages(self) -> list[dict]:
        """The chat to send; a raw text becomes one user message."""
        if self.text is not None:
            return [{"role": "user", "content": self.text}]
        return [dict(message) for message in self.messages]


def load_prompts(path: Path | str | None = None, limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` prompts of a file, or of the project's own set when ``path`` is None."""
    if limit is not None and limit < 1:
        raise RecGuideError(f"limit must be 1 or more, got {limit}")
    source = default_set() if path is None else Path(path)
    prompts = list(islice(_read(source), limit))
    if not prompts:
        raise RecGuideError(f"{source}: no prompts in this file; it may hold {SHAPES}")
    _check_ids(source, prompts)
    return prompts


def spread(prompts: list[Prompt], count: int | None) -> list[Prompt]:
    """``count`` prompts at even distances, so that a set sorted by category keeps all its categories."""
    if count is None or count >= len(prompts):
        return prompts
    if count < 1:
        raise RecGuideError(f"limit must be 1 or more, got {count}")
    return [prompts[i * len(prompts) // count] for i in range(count)]


def default_set() -> Traversable:
    return resources.files("recguide.data") / "prompts" / "default.jsonl"


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """Sixteen hex digits that change when any prompt, its id, its category or the order does."""
    canonical = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _read(source: Path | Traversable) -> Iterator[Prompt]:
    readers = {".txt": _txt, ".jsonl": _jsonl, ".json": _json}
    suffix = Path(source.name).suffix.lower()
    if suffix not in readers:
        raise RecGuideError(f"{source}: cannot tell the format from {suffix!r}; name it {', '.join(readers)}")
    return readers[suffix](source, _text(source))


def _text(source: Path | Traversable) -> str:
    try:
        return source.read_text(encoding="utf-8-sig")  # also without a byte order mark
    except FileNotFoundError:
        raise RecGuideError(f"{source}: no such file; give the path of a prompt file") from None
    except UnicodeDecodeError as error:
        raise RecGuideError(f"{source}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise RecGuideError(f"{source}: cannot be read: {error.strerror}") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, by number. Not splitlines: it also splits at U+2028, which JSON strings may hold."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _txt(source: Path | Traversable, text: str) -> Iterator[Prompt]:
    for number, line in _lines(text):
        yield Prompt(f"line-{number}", text=line)


def _jsonl(source: Path | Traversable, text: str) -> Iterator[Prompt]:
    for number, line in _lines(text):
        where = f"{source}: line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise RecGuideError(f"{where}: bad JSON: {error.msg} at column {error.colno}") from None
        yield _prompt(value, where, f"line-{number}")


def _json(source: Path | Traversable, text: str) -> Iterator[Prompt]:
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        advice = "; name it .jsonl if each line is a value" if error.msg == "Extra data" else ""
        raise RecGuideError(f"{source}: line {error.lineno}: bad JSON: {error.msg}{advice}") from None
    for number, item in enumerate(value if isinstance(value, list) else [value], 1):
        yield _prompt(item, f"{source}: item {number}", f"item-{number}")


def _prompt(value: Any, where: str, fallback_id: str) -> Prompt:
    if isinstance(value, str):
        return Prompt(fallback_id, text=_filled(value, where))
    kinds = [kind for kind in KINDS if kind in value] if isinstance(value, dict) else []
    if len(kinds) != 1:
        raise RecGuideError(f"{where}: {_shape_fault(kinds)}; a prompt is {SHAPES}")
    name, category = _name(value, fallback_id), value.get("category")
    category = None if category is None else str(category)
    if kinds == ["prompt"]:
        return Prompt(name, category, text=_filled(value["prompt"], where))
    messages = _messages(value["messages"], where) if kinds == ["messages"] else _first_turn(value["turns"], where)
    return Prompt(name, category, messages=messages)


def _shape_fault(kinds: list[str]) -> str:
    return f"{' and '.join(kinds)} together, keep one" if kinds else "unknown shape"


def _name(value: dict, fallback_id: str) -> str:
    given = value.get("id", value.get("question_id"))
    return fallback_id if given is None else str(given)


def _messages(messages: Any, where: str) -> tuple[dict, ...]:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RecGuideError(f'{where}: messages must be a list of {{"role": "user", "content": "..."}}')
    if not messages:
        raise RecGuideError(f"{where}: empty prompt")
    return tuple(_message(message, where) for message in messages)


def _message(message: dict, where: str) -> dict:
    role = message.get("role")
    if role not in ROLES:
        raise RecGuideError(f"{where}: role must be one of {', '.join(ROLES)}, got {role!r}")
    return {"role": role, "content": _filled(message.get("content"), where)}


def _first_turn(turns: Any, where: str) -> tuple[dict, ...]:
    if not isinstance(turns, list):
        raise RecGuideError(f"{where}: turns must be a list of strings, got {type(turns).__name__}")
    return ({"role": "user", "content": _filled(turns[0] if turns else "", where)},)


def _filled(text: Any, where: str) -> str:
    """The text itself, once it is known that a model can be asked to continue it."""
    if not isinstance(text, str):
        raise RecGuideError(f"{where}: the text of a prompt must be a string, got {type(text).__name__}")
    if not text.strip():
        raise RecGuideError(f"{where}: empty prompt")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RecGuideError(f"{where}: half of a surrogate pair, which is no text; was the prompt cut inside an emoji?")
    return text


def _check_ids(source: Path | Traversable, prompts: list[Prompt]) -> None:
    """Results are reported by id, so two prompts must not share one."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise RecGuideError(f"{source}: two prompts have the id {prompt.id!r}; make the ids unique")
        seen.add(prompt.id)
