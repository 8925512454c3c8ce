"""Prompts for the load generator: by category, in an order that a seed decides, encoded once each."""

from __future__ import annotations

import random
from collections.abc import Sequence

from recguide.lab.settings import ALL, LabSettings

from recguide.bench.measure import encode
from recguide.bench.prompts import Prompt, load_prompts
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models.loader import Model

ANSWER = 128  # tokens of the context that a prompt must leave


class Supply:
    """An endless stream of requests. The same seed gives the same prompts with the same sampling seeds."""

    def __init__(self, model: Model, prompts: Sequence[Prompt] | None, max_context: int):
        self._model, self._room = model, max_context
        self._encoded: dict[str, list[int]] = {}
        self.use(load_prompts() if prompts is None else prompts)

    def use(self, prompts: Sequence[Prompt]) -> None:
        """Serve another set from now on; RecGuideError, and the old set stays, when none of it fits the context."""
        longest = self._room - ANSWER
        fitting = [p for p in prompts if len(encode(self._model, p)) <= longest]
        if not fitting:
            raise RecGuideError(f"no prompt is shorter than {longest} tokens, which leaves {ANSWER} for an answer")
        self.prompts, self.left_out = fitting, len(prompts) - len(fitting)
        self._encoded.clear()
        self.restart(0, ALL)

    @property
    def categories(self) -> list[str]:
        return [ALL, *sorted({p.category for p in self.prompts if p.category})]

    def restart(self, seed: int, category: str) -> None:
        """Begin the stream anew for a seed and a category (or ``ALL``)."""
        chosen = [p for p in self.prompts if category in (ALL, p.category)]
        if not chosen:
            raise RecGuideError(f"no prompt of category {category!r}; there are: {', '.join(self.categories)}")
        self._seed, self._given, self._order = seed, 0, chosen
        random.Random(f"prompts/{seed}").shuffle(self._order)

    def next(self, settings: LabSettings) -> tuple[list[int], SamplingParams]:
        """Token ids and sampling parameters of the next request."""
        prompt = self._order[self._given % len(self._order)]
        params = SamplingParams(
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=self._seed + self._given,
        )
        self._given += 1
        if prompt.id not in self._encoded:
            self._encoded[prompt.id] = encode(self._model, prompt)
        return self._encoded[prompt.id], params
