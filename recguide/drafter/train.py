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
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from recguide.drafter.blocks import OPEN_SHARE, Block, PackedSequence, choose_blocks, pack
from recguide.drafter.dialogues import Dialogue
from recguide.errors import RecGuideError
from recguide.kernels.attention import additive, attention_to_train, fold_mask
from recguide.models.adapter import TARGETS, AdapterConfig, DraftAdapter, load_adapter
from recguide.models.backbone import Attend
from recguide.models.chain import Chain
from recguide.models.loader import Model, free_bytes

HELD_OUT = 0.04
LEAST_ANSWER = 8  # tokens: shorter ones have no room for draft blocks
EVAL_MASKS = 7
EVAL_SEQUENCES = 4
SAVE_SECONDS = 180
CACHE_SHARE = 0.55  # of the memory that is free when training starts, for the K/V of clean texts


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """``rows`` are draft rows a step over ``sequences`` dialogues. ``soft`` is the share of the loss that follows the
    verifier's probabilities (its ``top`` best tokens), the rest follows the token that was written. Drafts behind the
    first wrong one of their block would never be used: they weigh ``beyond``, the others 1. ``draft_shift`` 0: masks
    predict their own position; 1: every row of a block predicts the position behind it. ``adapt_tokens``: the adapter
    serves the known token of a block too (the published convention, with shift 0). ``targets`` and ``layers`` get
    factors (no layers named: all); each costs a product in every step that drafts. ``chain`` is the rank of the chain
    (0: none)."""

    steps: int = 3000
    rows: int = 256
    sequences: int = 2
    rank: int = 32
    learning_rate: float = 2e-3
    warmup: int = 30
    soft: float = 0.7
    top: int = 24
    beyond: float = 0.15
    seed: int = 0
    draft_shift: int = 1
    adapt_tokens: bool = False
    targets: tuple[str, ...] = TARGETS
    layers: tuple[int, ...] = ()
    chain: int = 256

    def __post_init__(self) -> None:
        if not (self.adapt_tokens or self.draft_shift):
            raise RecGuideError(
                "adapt_tokens off needs draft_shift 1: the plain row of a known token drafts the next one"
            )
        if self.draft_shift not in (0, 1):
            raise RecGuideError(f"draft_shift is {self.draft_shift}; allowed: 0 or 1")
        for name in ("steps", "rows", "sequences", "rank", "warmup", "top"):
            if getattr(self, name) < 1:
                raise RecGuideError(f"{name} is {getattr(self, name)}; allowed: >= 1")
        if not self.learning_rate > 0:
            raise RecGuideError(f"learning_rate is {self.learning_rate}; allowed: > 0")
        if self.chain < 0:
            raise RecGuideError(f"chain is {self.chain}; allowed: >= 0 (0: none)")
        for name in ("soft", "beyond"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecGuideError(f"{name} is {getattr(self, name)}; allowed: 0..1")


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

    def __init__(
        self,
        model: Model,
        dialogues: list[Dialogue],
        settings: TrainSettings,
        folder: Path,
        start_from: Path | None = None,
    ):
        if model.backbone.packed:
            raise RecGuideError("the model's weights are packed for inference; load it with pack=False to train")
        dialogues = [dialogue for dialogue in dialogues if len(dialogue.answer) >= LEAST_ANSWER]
        if len(dialogues) < 8:
            raise RecGuideError(
                f"{len(dialogues)} dialogues of {LEAST_ANSWER} tokens or more are too few to train on; write at least 8"
            )
        self.model, self.settings, self.folder = model, settings, folder
        every = min(round(1 / HELD_OUT), len(dialogues) // 2)
        self.held_out = dialogues[::every]  # not the first ones: short answers are finished, and stand, before others
        self.dialogues = [dialogue for number, dialogue in enumerate(dialogues) if number % every]
        torch.manual_seed(settings.seed)
        config = AdapterConfig(
            rank=settings.rank,
            alpha=settings.rank,
            draft_shift=settings.draft_shift,
            adapt_tokens=settings.adapt_tokens,
            targets=settings.targets,
            layers=settings.layers,
            chain=settings.chain,
        )
        self.adapter = DraftAdapter(model.config, config, model.fingerprint).to(model.backbone.device)
        if self.adapter.mask_embedding is not None:
            self.adapter.mask_embedding.data.copy_(model.backbone.embedding.float().mean(0))
        if start_from is not None:
            self.adapter.start_from(load_adapter(start_from, model.config, model.fingerprint))
        self.optimiser = torch.optim.AdamW(
            self.adapter.parameters(), lr=settings.learning_rate, weight_decay=0.0, betas=(0.9, 0.95), fused=True
        )
        self._clean = CleanTexts(model, settings.top)
        self.step, self.seconds = 0, 0.0
        self._resume()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.pt"

    def _resume(self) -> None:
        if not self._state_path.exists():
            return
        try:
            state = torch.load(self._state_path, weights_only=True)
        except Exception as fault:  # zip, pickle and torch each have their own for a damaged file
            raise RecGuideError(f"{self._state_path}: damaged ({fault!r}); delete it to start again") from None
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
        # the plain row of a known token is a row of the clean text: with it, every block is an open one
        share = OPEN_SHARE if s.adapt_tokens else 1.0
        blocks = [choose_blocks(d, s.rows // len(batch), chooser, s.draft_shift, share) for d in batch]
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        loss = self._loss(batch, blocks)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), 1.0)
        self.optimiser.step()
        return loss.item()

    def _loss(self, batch: list[Dialogue], blocks: list[list[Block]]) -> Tensor:
        clean = [self._clean.get(d) for d in batch]
        packed = self._pack(batch, blocks)
        logits = self._draft_logits(clean, packed)
        written = torch.cat([c.tokens[p.targets] for c, p in zip(clean, packed, strict=True)])[:, None]
        order = torch.cat([p.order for p in packed]).to(logits.device)
        right = logits.detach().gather(1, written)[:, 0] == logits.detach().amax(-1)
        weight = torch.where(reached(right, order), 1.0, self.settings.beyond)
        each = self._distill(logits, written, clean, packed)
        return (each * weight).sum() / weight.sum()

    def _pack(self, batch: list[Dialogue], blocks: list[list[Block]]) -> list[PackedSequence]:
        mask = self.model.config.mask_id
        shift = self.settings.draft_shift
        return [pack(d.prompt + d.answer, b, mask, shift) for d, b in zip(batch, blocks, strict=True)]

    def _distill(self, logits: Tensor, written: Tensor, clean: list[CleanText], packed: list[PackedSequence]) -> Tensor:
        """Cross entropy [masks] to a mixture of the verifier's top probabilities and the token that was written."""
        soft, pairs = self.settings.soft, list(zip(clean, packed, strict=True))
        ids = torch.cat([written, torch.cat([c.top_ids[p.targets] for c, p in pairs])], 1)
        top = soft * torch.cat([c.top_probabilities[p.targets] for c, p in pairs])
        mixture = F.pad(top, (1, 0), value=1 - soft)
        return logits.float().logsumexp(-1) - (mixture * logits.gather(1, ids)).sum(-1)  # the mixture sums to 1

    def _draft_logits(self, clean: list[CleanText], packed: list[PackedSequence]) -> Tensor:
        """Logits [scored rows, vocab] of all rows that predict something, through the adapter."""
        backbone = self.model.backbone
        sizes = [len(p.tokens) for p in packed]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        device = backbone.device
        mask_rows, scored_rows = (
            torch.cat([rows + o for rows, o in zip(each, offsets, strict=True)]).to(device)
            for each in ([p.mask_rows for p in packed], [p.scored_rows for p in packed])
        )
        hidden = backbone.forward(
            torch.cat([p.tokens for p in packed]).to(device),
            torch.cat([p.positions for p in packed]).to(device),
            attend_from(clean, packed),
            first_draft_row=0,
            mask_rows=mask_rows,
            adapter=self.adapter.fused(backbone.dtype, device),
        )
        return backbone.logits(self._chained(hidden[scored_rows], clean, packed))

    def _chained(self, hidden: Tensor, clean: list[CleanText], packed: list[PackedSequence]) -> Tensor:
        """Hidden states of scored rows, moved by the tokens that were written before each."""
        if self.adapter.chain is None:
            return hidden
        behind = torch.tensor([1, 2], device=hidden.device)
        before = torch.cat([c.tokens[p.targets[:, None] - behind] for c, p in zip(clean, packed, strict=True)])
        table = self.model.backbone.embedding
        chain = Chain(self.adapter.chain, table, table, pack=False)  # only its move is used, which takes no head
        return hidden + chain.move(chain.lead(hidden), before)

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """P(draft j equals the written token | all before did), on held-out answers."""
        reached, accepted = [0] * EVAL_MASKS, [0] * EVAL_MASKS
        for first in range(0, len(self.held_out), EVAL_SEQUENCES):
            for row in self._evaluate_batch(self.held_out[first : first + EVAL_SEQUENCES]):
                for j, right in enumerate(row):
                    reached[j] += 1
                    accepted[j] += right
                    if not right:
                        break
        return [a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)]

    def _evaluate_batch(self, batch: list[Dialogue]) -> list[list[bool]]:
        """Per block: which drafts are right."""
        clean = [self._clean.get(d) for d in batch]
        shift = self.settings.draft_shift
        blocks = [_evaluation_blocks(d, shift, opened=not self.settings.adapt_tokens) for d in batch]
        packed = self._pack(batch, blocks)
        best = self._draft_logits(clean, packed).argmax(-1)
        written = torch.cat([c.tokens[p.targets] for c, p in zip(clean, packed, strict=True)])
        right = iter((best == written).tolist())
        return [list(islice(right, block.scored(shift))) for each in blocks for block in each]


def reached(right: Tensor, order: Tensor) -> Tensor:
    """Which drafts stand behind right ones only. ``order`` counts from 1 within each block."""
    wrong = (~right).long()
    before = wrong.cumsum(0) - wrong  # wrong drafts in front of each one, over all blocks
    start = torch.arange(len(wrong), device=wrong.device) - (order - 1)
    return before == before[start]


def _evaluation_blocks(dialogue: Dialogue, shift: int, *, opened: bool) -> list[Block]:
    """Blocks of EVAL_MASKS drafts that tile the answer; the end of the text shortens the last."""
    last = len(dialogue.prompt) + len(dialogue.answer) - 1
    places = range(len(dialogue.prompt) - 1, last, EVAL_MASKS + 1)
    masks = [min(EVAL_MASKS, last - at) - shift for at in places]
    return [Block(at, count, opened) for at, count in zip(places, masks, strict=True) if count or not opened]


def expected_accepted(conditional: list[float]) -> float:
    """Accepted drafts per round: the sum of survivals."""
    survival, total = 1.0, 0.0
    for c in conditional:
        survival *= c
        total += survival
    return total


class CleanText:
    """Frozen K/V of one dialogue and the verifier's probabilities for its answer, made once without gradient.

    ``keys`` and ``values`` hold one [kv_heads, tokens, head_dim] a layer. Row t of ``top_ids`` and
    ``top_probabilities`` [tokens, top] is about the token at place t; only answer places are filled.
    """

    @torch.no_grad()
    def __init__(self, model: Model, dialogue: Dialogue, top: int):
        config, backbone = model.config, model.backbone
        self._scale, self._group_size = config.head_dim**-0.5, config.group_size
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.tokens = torch.tensor(dialogue.prompt + dialogue.answer, device=backbone.device)
        size, first = len(self.tokens), len(dialogue.prompt)
        hidden = backbone.forward(self.tokens, torch.arange(size, device=backbone.device), self._attend)
        best = backbone.logits(hidden[first - 1 : size - 1]).topk(top, -1)
        self.top_ids = best.indices.new_zeros(size, top)
        self.top_probabilities = torch.zeros(size, top, device=backbone.device)
        self.top_ids[first:] = best.indices
        self.top_probabilities[first:] = best.values.float().softmax(-1)  # among the best ``top``

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys.append(heads_first(k).contiguous())
        self.values.append(heads_first(v).contiguous())
        wide = [x[-1].repeat_interleave(self._group_size, 0)[None] for x in (self.keys, self.values)]
        out = F.scaled_dot_product_attention(heads_first(q)[None], *wide, is_causal=True, scale=self._scale)
        return out[0].transpose(0, 1).flatten(1)

    @property
    def bytes(self) -> int:
        return 2 * sum(k.nbytes for k in self.keys)

    def mask(self, allowed: Tensor) -> Tensor:
        """What draft rows see of this text and of themselves, as scores to add."""
        blocked = fold_mask(~allowed[None].to(self.tokens.device), self._group_size)
        return additive(blocked, self.keys[0].dtype, allowed.shape[-1])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attention of draft rows over this text and themselves."""
        keys = torch.cat((self.keys[layer], heads_first(k)), 1)
        values = torch.cat((self.values[layer], heads_first(v)), 1)
        return attention_to_train(q, keys, values, mask, self._scale)


class CleanTexts:
    """Clean texts by dialogue, kept for the next epoch while they fit into ``budget`` bytes (default: CACHE_SHARE)."""

    def __init__(self, model: Model, top: int, budget: int | None = None):
        free = free_bytes(model.backbone.device)
        self._model, self._top, self._budget = model, top, int(CACHE_SHARE * free) if budget is None else budget
        self._kept: dict[int, CleanText] = {}
        self._used = 0

    def get(self, dialogue: Dialogue) -> CleanText:
        kept = self._kept.get(id(dialogue))
        if kept is None:
            kept = CleanText(self._model, dialogue, self._top)
            if self._used + kept.bytes <= self._budget:
                self._kept[id(dialogue)] = kept
                self._used += kept.bytes
        return kept


def attend_from(clean: list[CleanText], packed: list[PackedSequence]) -> Attend:
    """An ``attend`` for the draft rows of several dialogues, one after the other."""
    sizes = [len(p.tokens) for p in packed]
    masks = [text.mask(p.allowed) for text, p in zip(clean, packed, strict=True)]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(clean, q.split(sizes), k.split(sizes), v.split(sizes), masks, strict=True)
        return torch.cat([text.attend(layer, *part) for text, *part in parts])

    return attend


def heads_first(x: Tensor) -> Tensor:
    """[rows, heads, width] -> [heads, rows, width]."""
    return x.transpose(0, 1)
