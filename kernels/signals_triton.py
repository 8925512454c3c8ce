"""Signals of logits rows and draws with noise, in Triton: one pass over the logits, whatever is asked for.

A program reads a part of a row. It keeps the two best tokens of every lane, the running maximum, and what the sum of
exponentials and the entropy need; a second kernel joins the parts of a row. Few rows are cut into more parts, so that a
GPU is busy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .backend import launching, processors
from .noise import FACTORS, TOKEN_OFFSET, states
from .signals import Signals

BLOCK = 2048
TOP_BLOCK = 1024  # registers hold a block while its best are taken out one by one
OFFSET, FIRST, SECOND = tl.constexpr(TOKEN_OFFSET), tl.constexpr(FACTORS[0]), tl.constexpr(FACTORS[1])
NONE = tl.constexpr(2**30)  # no token


@triton.jit
def _mix(x):
    """The 32-bit finaliser of ``noise.mix``."""
    x = (x ^ (x >> 16)) * FIRST
    x = (x ^ (x >> 15)) * SECOND
    return x ^ (x >> 16)


@triton.jit
def _best_two(first, first_id, second, second_id):
    """The two best of all lanes, each of which holds its own two; the lowest id of equals."""
    value = tl.max(first)
    token = tl.min(tl.where(first == value, first_id, NONE))
    rest = tl.where(first_id == token, second, first)
    rest_id = tl.where(first_id == token, second_id, first_id)
    next_value = tl.max(rest)
    # a lane that has seen nothing names a token all the same: never the best one again
    equal = (rest == next_value) & (rest_id != token)
    return value, token, next_value, tl.min(tl.where(equal, rest_id, NONE))


@triton.jit
def _two_of_lane(x, token, first, first_id, second, second_id):
    """A lane's two best after it has seen one more token each."""
    better, between = x > first, x > second
    second = tl.where(better, first, tl.where(between, x, second))
    second_id = tl.where(better, first_id, tl.where(between, token, second_id))
    return tl.where(better, x, first), tl.where(better, token, first_id), second, second_id


@triton.jit(do_not_specialize=["blocks"])
def signals_fwd_kernel(
    logits_ptr, values_ptr, ids_ptr, states_ptr, temperature_ptr, vocab, mask_id, stride, blocks,
    ENTROPY: tl.constexpr, SIGNALS: tl.constexpr, SAMPLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """values [rows, parts, 6] = two best logits, maximum m, sum of e^(x-m), sum of e^(x-m) (x-m), best noisy score;
    ids [rows, parts, 3] = two best tokens, drawn token. ``blocks`` of the vocabulary make a part."""
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    lane = tl.arange(0, BLOCK)
    low = -float("inf")
    first, first_id = tl.full([BLOCK], low, tl.float32), lane
    second, second_id = tl.full([BLOCK], low, tl.float32), lane
    noisy, noisy_id = tl.full([BLOCK], low, tl.float32), lane
    m, total, spread = low, 0.0, 0.0
    if SAMPLE:
        state = tl.load(states_ptr + row).to(tl.uint32, bitcast=True)
        temperature = tl.load(temperature_ptr + row)
    for block in range(part * blocks, (part + 1) * blocks):
        token = block * BLOCK + lane
        x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=low).to(tl.float32)
        x = tl.where(token == mask_id, low, x)
        if SIGNALS:
            first, first_id, second, second_id = _two_of_lane(x, token, first, first_id, second, second_id)
            best = tl.maximum(m, tl.max(x))
            base = tl.where(best == low, 0.0, best)
            fade, weight = tl.exp(m - base), tl.exp(x - base)
            if ENTROPY:
                # moved to the new maximum; nothing was summed while m was -inf
                moved = spread + total * tl.where(m == low, 0.0, m - base)
                spread = fade * moved + tl.sum(weight * tl.where(x == low, 0.0, x - base))
            total = total * fade + tl.sum(weight)
            m = best
        if SAMPLE:
            bits = _mix(_mix(_mix(token.to(tl.uint32) + OFFSET)) ^ state)
            u = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
            score = tl.div_rn(x, temperature) - tl.log(-tl.log(u))
            better = score > noisy
            noisy, noisy_id = tl.where(better, score, noisy), tl.where(better, token, noisy_id)
    place = row * parts + part
    if SIGNALS:
        value, token, next_value, next_token = _best_two(first, first_id, second, second_id)
        tl.store(values_ptr + 6 * place, value)
        tl.store(values_ptr + 6 * place + 1, next_value)
        tl.store(values_ptr + 6 * place + 2, m)
        tl.store(values_ptr + 6 * place + 3, total)
        tl.store(values_ptr + 6 * place + 4, spread)
        tl.store(ids_ptr + 3 * place, token)
        tl.store(ids_ptr + 3 * place + 1, next_token)
    if SAMPLE:
        score = tl.max(noisy)
        tl.store(values_ptr + 6 * place + 5, score)
        tl.store(ids_ptr + 3 * place + 2, tl.min(tl.where(noisy == score, noisy_id, NONE)))


@triton.jit(do_not_specialize=["parts"])
def signals_join_kernel(
    values_ptr, ids_ptr, tokens_ptr, chances_ptr, summary_ptr, parts, vocab,
    ENTROPY: tl.constexpr, SIGNALS: tl.constexpr, SAMPLE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A row's parts joined: tokens [rows, 3] = two best, drawn; chances [rows, 2]; summary [rows, 2] = logsumexp,
    entropy."""
    row, part, low = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS), -float("inf")
    there, place = part < parts, row * parts + part
    values, ids = values_ptr + 6 * place, ids_ptr + 3 * place
    if SIGNALS:
        first, second = tl.load(values, there, low), tl.load(values + 1, there, low)
        first_id, second_id = tl.load(ids, there, NONE), tl.load(ids + 1, there, NONE)
        value, token, next_value, next_token = _best_two(first, first_id, second, second_id)
        m = tl.load(values + 2, there, low)
        best = tl.max(m)
        base = tl.where(best == low, 0.0, best)
        fade = tl.exp(m - base)
        part_total = tl.load(values + 3, there, 0.0)
        total = tl.sum(fade * part_total)
        tl.store(tokens_ptr + 3 * row, tl.minimum(token, vocab - 1).to(tl.int64))
        tl.store(tokens_ptr + 3 * row + 1, tl.minimum(next_token, vocab - 1).to(tl.int64))
        tl.store(chances_ptr + 2 * row, tl.exp(value - best) / total)
        tl.store(chances_ptr + 2 * row + 1, tl.exp(next_value - best) / total)
        tl.store(summary_ptr + 2 * row, best + tl.log(total))
        if ENTROPY:
            spread = tl.load(values + 4, there, 0.0) + part_total * tl.where(m == low, 0.0, m - base)
            tl.store(summary_ptr + 2 * row + 1, tl.log(total) - tl.sum(fade * spread) / total)
    if SAMPLE:
        noisy = tl.load(values + 5, there, low)
        drawn = tl.min(tl.where(noisy == tl.max(noisy), tl.load(ids + 2, there, NONE), NONE))
        tl.store(tokens_ptr + 3 * row + 2, tl.minimum(drawn, vocab - 1).to(tl.int64))


@triton.jit
def top_k_fwd_kernel(logits_ptr, values_ptr, ids_ptr, vocab, mask_id, stride, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """values, ids [rows, blocks, TOP_K]: the best of every block of the vocabulary, best first."""
    row, block, low = tl.program_id(0).to(tl.int64), tl.program_id(1), -float("inf")
    token = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=low).to(tl.float32)
    x = tl.where(token == mask_id, low, x)
    place = (row * tl.num_programs(1) + block) * TOP_K
    left = token < vocab
    for k in range(TOP_K):
        value = tl.max(tl.where(left, x, low))
        best = tl.min(tl.where(left & (x == value), token, NONE))
        tl.store(values_ptr + place + k, value)
        tl.store(ids_ptr + place + k, best)
        left = left & (token != best)


def _run(logits: Tensor, mask_id: int | None, noise: tuple[Tensor, Tensor] | None, entropy: bool, wanted: bool):
    """tokens [rows, 3], chances [rows, 2], summary [rows, 2]: see ``signals_join_kernel``."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    block = min(BLOCK, triton.next_power_of_2(vocab))
    blocks = triton.cdiv(vocab, block)
    parts = min(blocks, max(1, 8 * processors(logits.device) // max(rows, 1)))
    each = triton.cdiv(blocks, parts)
    parts = triton.cdiv(blocks, each)
    device = logits.device
    values = torch.empty(rows, parts, 6, device=device)
    ids = torch.empty(rows, parts, 3, dtype=torch.int32, device=device)
    tokens = torch.empty(rows, 3, dtype=torch.int64, device=device)
    chances, summary = torch.empty(rows, 2, device=device), torch.empty(rows, 2, device=device)
    state, temperature = noise or (ids, values)
    mask = -1 if mask_id is None else mask_id
    if not rows:
        return tokens, chances, summary
    with launching(device):
        signals_fwd_kernel[(rows, parts)](
            logits, values, ids, state, temperature, vocab, mask, logits.stride(0), each,
            entropy, wanted, noise is not None, block, num_warps=8 if block >= 2048 else 4,
        )  # fmt: skip
        signals_join_kernel[(rows,)](
            values, ids, tokens, chances, summary, parts, vocab,
            entropy, wanted, noise is not None, triton.next_power_of_2(parts), num_warps=1,
        )  # fmt: skip
    return tokens, chances, summary


def _top(logits: Tensor, top_k: int, mask_id: int | None) -> tuple[Tensor, Tensor]:
    """Ids and logits of the best, from the best of every block."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    block = max(TOP_BLOCK, triton.next_power_of_2(top_k))
    blocks = triton.cdiv(vocab, block)
    values = torch.empty(rows, blocks, top_k, device=logits.device)
    ids = torch.empty(rows, blocks, top_k, dtype=torch.int32, device=logits.device)
    if rows:
        mask = -1 if mask_id is None else mask_id
        with launching(logits.device):
            top_k_fwd_kernel[(rows, blocks)](logits, values, ids, vocab, mask, logits.stride(0), top_k, block)
    best = values.flatten(1).topk(top_k, -1)
    return ids.flatten(1).gather(1, best.indices).long(), best.values


def signals_triton(logits: Tensor, entropy: bool, top_k: int, mask_id: int | None) -> Signals:
    """``signals`` in Triton; the lowest id of equally good tokens comes first."""
    tokens, chances, summary = _run(logits, mask_id, None, entropy, True)
    top = _top(logits, top_k, mask_id) if top_k else (None, None)
    return Signals(tokens[:, :2], chances, summary[:, 0], summary[:, 1] if entropy else None, *top)


def sample_triton(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """``sample`` in Triton."""
    # the 32 bits of the hash as they are: int32 holds them where uint32 tensors lack operations
    state = states(seeds, positions).to(torch.int32).to(logits.device, non_blocking=True)
    temperature = temperatures.float().to(logits.device, non_blocking=True)
    return _run(logits, None, (state, temperature), False, False)[0][:, 2]
