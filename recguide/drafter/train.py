"""Train the draft adapter on self-made dialogues, on a CPU or a GPU, in as many sittings as it takes.

The clean text is frozen: its K/V and the verifier's own next-token probabilities are computed once a batch without
gradient, then forward and backward run through draft rows only. The state is saved every few minutes and on Ctrl-C;
the same command goes on from there.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from recguide.drafter.blocks import Block, PackedSequence, choose_blocks, pack
from recguide.drafter.dialogues import Dialogue
from recguide.errors import RecGuideError
from recguide.kernels.attention import attention, fold_mask
from recguide.models.adapter import AdapterConfig, DraftAdapter
from recguide.models.loader import Model

HELD_OUT = 0.04
EVAL_MASKS = 7
SAVE_SECONDS = 180


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """``rows`` are draft rows a step over ``sequences`` dialogues. ``soft`` is the share of the loss that follows the
    verifier's probabilities (its ``top`` best tokens), the rest follows the token that was written. Position j behind
    the last known token weighs ``decay ** (j - 1)``."""

    steps: int = 1500
    rows: int = 1024
    sequences: int = 8
    rank: int = 32
    learning_rate: float = 2e-3
    warmup: int = 30
    soft: float = 0.7
    top: int = 24
    decay: float = 0.88
    seed: int = 0


@dataclass(frozen=True)
class Report:
    """Progress of a run. Acceptance is teacher-forced on held-out dialogues, seed known, EVAL_MASKS drafts."""

    step: int
    loss: float
    seconds: float
    conditional_acceptance: list[float] | None = None
    accepted: float | None = None


class Trainer:
    """Owns the adapter, the optimiser and the data order of one run folder."""

    def __init__(self, model: Model, dialogues: list[Dialogue], settings: TrainSettings, folder: Path):
        if len(dialogues) < 8:
            raise RecGuideError(f"{len(dialogues)} dialogues are too few to train on; write at least 8")
        self.model, self.settings, self.folder = model, settings, folder
        held = max(2, int(len(dialogues) * HELD_OUT))
        self.held_out, self.dialogues = dialogues[:held], dialogues[held:]
        torch.manual_seed(settings.seed)
        config = AdapterConfig(rank=settings.rank, alpha=settings.rank)
        self.adapter = DraftAdapter(model.config, config, model.fingerprint).to(model.backbone.device)
        self.adapter.mask_embedding.data.copy_(model.backbone.embedding.float().mean(0))
        self.optimiser = torch.optim.AdamW(
            self.adapter.parameters(), lr=settings.learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
        )
        self.step, self.seconds = 0, 0.0
        self._resume()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.pt"

    def _resume(self) -> None:
        if not self._state_path.exists():
            return
        state = torch.load(self._state_path, weights_only=True)
        if state["settings"] != asdict(self.settings) or state["fingerprint"] != self.model.fingerprint:
            raise RecGuideError(f"{self.folder}: holds a run of other settings or another model; choose another folder")
        self.adapter.load_state_dict(state["adapter"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the state (atomically) and the adapter as it is now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": asdict(self.settings),
            "fingerprint": self.model.fingerprint,
            "adapter": self.adapter.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        partial = self._state_path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._state_path)
        self.adapter.save(
            self.folder / "adapter", {"training": json.dumps(asdict(self.settings) | {"step": self.step})}
        )

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self, on_report: Callable[[Report], None], *, eval_every: int = 100, minutes: float = math.inf) -> None:
        """Train to ``settings.steps``, or until this sitting has lasted ``minutes``. Saves on every way out."""
        started = saved = time.monotonic()
        try:
            while self.step < self.settings.steps and time.monotonic() - started < 60 * minutes:
                began = time.monotonic()
                loss = self._train_step()
                self.step += 1
                self.seconds += time.monotonic() - began
                on_report(self._report(loss, evaluate=self.step % eval_every == 0))
                if time.monotonic() - saved > SAVE_SECONDS:
                    self.save()
                    saved = time.monotonic()
        finally:
            self.save()

    def _report(self, loss: float, *, evaluate: bool) -> Report:
        if not evaluate:
            return Report(self.step, loss, self.seconds)
        conditional = self.evaluate()
        report = Report(self.step, loss, self.seconds, conditional, expected_accepted(conditional))
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.jsonl").open("a") as stream:
            stream.write(json.dumps(asdict(report)) + "\n")
        return report

    def _learning_rate(self) -> float:
        s = self.settings
        warm = min(1.0, (self.step + 1) / s.warmup)
        return s.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * self.step / s.steps))

    def _train_step(self) -> float:
        s = self.settings
        chooser = random.Random(f"{s.seed}/{self.step}")
        batch = chooser.sample(self.dialogues, min(s.sequences, len(self.dialogues)))
        blocks = [choose_blocks(d, s.rows // len(batch), chooser) for d in batch]
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        loss = self._loss(batch, blocks)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), 1.0)
        self.optimiser.step()
        return loss.item()

    def _loss(self, batch: list[Dialogue], blocks: list[list[Block]]) -> Tensor:
        clean = CleanText(self.model, batch, top=self.settings.top)
        packed = [pack(d.prompt + d.answer, b, self.model.config.mask_id) for d, b in zip(batch, blocks, strict=True)]
        logits = self._draft_logits(clean, packed)
        places = [offset + p.targets for offset, p in zip(clean.offsets, packed, strict=True)]
        target = torch.cat(places).to(logits.device)
        weight = self.settings.decay ** (torch.cat([p.distance for p in packed]) - 1).to(logits.device)
        return self._distill(logits, clean, target, weight)

    def _distill(self, logits: Tensor, clean: CleanText, target: Tensor, weight: Tensor) -> Tensor:
        """Cross entropy to a mixture of the verifier's top probabilities and the token that was written."""
        logs = F.log_softmax(logits.float(), -1)
        # the probabilities for the token at place t stand at row t - 1 of the clean text
        ids, probabilities = clean.top_ids[target - 1], clean.top_probabilities[target - 1]
        soft = -(probabilities * logs.gather(1, ids)).sum(-1)
        hard = -logs.gather(1, clean.tokens[target][:, None])[:, 0]
        each = self.settings.soft * soft + (1 - self.settings.soft) * hard
        return (each * weight).sum() / weight.sum()

    def _draft_logits(self, clean: CleanText, packed: list[PackedSequence]) -> Tensor:
        """Logits [masks, vocab] of all mask rows, through the adapter."""
        backbone = self.model.backbone
        sizes = [len(p.tokens) for p in packed]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        device = backbone.device
        mask_rows = torch.cat([p.mask_rows + o for p, o in zip(packed, offsets, strict=True)]).to(device)
        hidden = backbone.forward(
            torch.cat([p.tokens for p in packed]).to(device),
            torch.cat([p.positions for p in packed]).to(device),
            clean.attend_from([p.allowed.to(device) for p in packed]),
            first_draft_row=0,
            mask_rows=mask_rows,
            adapter=self.adapter.fused(backbone.dtype, device),
        )
        return backbone.logits(hidden[mask_rows])

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """P(draft j equals the written token | all before did), on held-out greedy answers."""
        reached, accepted = [0] * EVAL_MASKS, [0] * EVAL_MASKS
        for first in range(0, len(self.held_out), self.settings.sequences):
            batch = self.held_out[first : first + self.settings.sequences]
            for row in self._evaluate_batch(batch):
                for j, right in enumerate(row):
                    reached[j] += 1
                    accepted[j] += right
                    if not right:
                        break
        return [a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)]

    def _evaluate_batch(self, batch: list[Dialogue]) -> list[list[bool]]:
        clean = CleanText(self.model, batch, top=1)
        blocks = []
        for d in batch:
            places = range(len(d.prompt) - 1, len(d.prompt) + len(d.answer) - 1 - EVAL_MASKS, EVAL_MASKS + 1)
            blocks.append([Block(at, EVAL_MASKS, False) for at in places] or [Block(len(d.prompt) - 1, 1, False)])
        packed = [pack(d.prompt + d.answer, b, self.model.config.mask_id) for d, b in zip(batch, blocks, strict=True)]
        best = self._draft_logits(clean, packed).argmax(-1)
        places = torch.cat([o + p.targets for o, p in zip(clean.offsets, packed, strict=True)]).to(best.device)
        right = (best == clean.tokens[places]).tolist()
        rows, at = [], 0
        for block in (b for bs in blocks for b in bs):
            rows.append(right[at : at + block.masks])
            at += block.masks
        return rows


def expected_accepted(conditional: list[float]) -> float:
    """Accepted drafts per round: the sum of survivals."""
    survival, total = 1.0, 0.0
    for c in conditional:
        survival *= c
        total += survival
    return total


class CleanText:
    """Frozen K/V and next-token probabilities of several dialogues, rows concatenated; no gradient."""

    @torch.no_grad()
    def __init__(self, model: Model, batch: list[Dialogue], top: int):
        self._scale = model.config.head_dim**-0.5
        device = model.backbone.device
        texts = [d.prompt + d.answer for d in batch]
        self.sizes = [len(t) for t in texts]
        self.offsets = [sum(self.sizes[:i]) for i in range(len(texts))]
        self.tokens = torch.tensor([t for text in texts for t in text], device=device)
        positions = torch.cat([torch.arange(n) for n in self.sizes]).to(device)
        self._keys: list[list[Tensor]] = []
        self._values: list[list[Tensor]] = []
        hidden = model.backbone.forward(self.tokens, positions, self._attend_causally)
        logits = model.backbone.logits(hidden).float()
        best = logits.topk(top, -1)
        self.top_ids = best.indices
        self.top_probabilities = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
        self.top_probabilities /= self.top_probabilities.sum(-1, keepdim=True)

    def _attend_causally(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._keys.append([heads_first(x) for x in k.split(self.sizes)])
        self._values.append([heads_first(x) for x in v.split(self.sizes)])
        made = []
        for rows, keys, values in zip(q.split(self.sizes), self._keys[layer], self._values[layer], strict=True):
            groups = rows.shape[1] // keys.shape[0]
            wide = [x.repeat_interleave(groups, 0)[None] for x in (keys, values)]
            out = F.scaled_dot_product_attention(heads_first(rows)[None], *wide, is_causal=True, scale=self._scale)
            made.append(out[0].transpose(0, 1).flatten(1))
        return torch.cat(made)

    def attend_from(self, allowed: list[Tensor]) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        """An ``attend`` for draft rows: each sees its part of the clean text and its own block."""
        sizes = [len(a) for a in allowed]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            groups = q.shape[1] // k.shape[1]
            made = []
            parts = zip(q.split(sizes), k.split(sizes), v.split(sizes), allowed, strict=True)
            for i, (rows, keys, values, mask) in enumerate(parts):
                all_keys = torch.cat((self._keys[layer][i], heads_first(keys)), 1)[None]
                all_values = torch.cat((self._values[layer][i], heads_first(values)), 1)[None]
                blocked = fold_mask(~mask[None], groups)
                made.append(attention(rows[None], all_keys, all_values, blocked, self._scale)[0])
            return torch.cat(made)

        return attend


def heads_first(x: Tensor) -> Tensor:
    """[rows, heads, width] -> [heads, rows, width]."""
    return x.transpose(0, 1)
