"""C kernels for few rows of bfloat16 on a processor with AVX-512, compiled on first use.

A step of few rows takes the time in which weights and cache can be read, if little else is done: here a product reads
its weights in one stream, and what is between products is one pass each. A row's results do not depend on the other
rows of a step: the same tokens in the same places give the same bits, whether they are drafted, verified, batched or
decoded one by one.

The sources (``csrc``) are compiled by the system's C compiler into the cache folder, in about two seconds, once for
every version of them. They run on torch's own threads. Tensors are bfloat16 and on the CPU; their last dimension is
dense.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .rows import Places, StepRows

SOURCES = tuple(sorted(Path(__file__).parent.joinpath("csrc").glob("*.[ch]")))
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-fvisibility=hidden")
NEEDED = ("fma", "avx512f", "avx512bw", "avx512vl", "avx512dq")
PRODUCTS = "avx512_bf16"  # used where there, else made of plain instructions
"""Names in /proc/cpuinfo; a compiler's flags are these without underscores."""
PANEL = 32  # outputs side by side in a packed weight
GROUP = 48  # rows that share one reading of a weight, at most
QUERIES = 64  # (row, query head) pairs of one task of attention, at most
WIDEST = 256  # head_dim, at most
SIZES = {"PANEL": PANEL, "GROUP": GROUP, "QUERIES": QUERIES, "WIDEST": WIDEST}
LOG2_E = 1.4426950408889634

P, C, N, F = ctypes.c_void_p, ctypes.c_int, ctypes.c_ssize_t, ctypes.c_float
SIGNATURES = {
    "linear": (P, N, P, P, N, C, C, P, C, P, C),
    "decode": (P, P, C),
    "best_tokens": (P, N, C, C, C, P, P, C),
    "exponential_sums": (P, N, P, N, C, C, P, C),
    "chain_scores": (P, P, P, P, P, C),
    "chain_follow": (P, P, C, P, P, P, P, C),
    "attention": (P, N, P, P, N, N, P, P, C, C, C, C),
    "rms_norm": (P, N, P, F, P, C, C, C),
    "silu_product": (P, N, P, C, C, C),
    "rotate": (P, N, P, P, P, C, C, C, C),
    "store_kv": (P, N, P, N, P, P, N, N, P, P, C, C, C, C),
}


class Unavailable(Exception):
    """Why the C kernels cannot run here, in words."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The compiled kernels. Raises Unavailable."""
    missing = [name for name in NEEDED if name not in _processor()]
    if missing:
        raise Unavailable(f"the processor has no {missing[0]}")
    path = _built()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as fault:
        raise Unavailable(f"{path} cannot be loaded ({fault})") from None
    for name, types in SIGNATURES.items():
        getattr(loaded, name).argtypes, getattr(loaded, name).restype = types, None
    return loaded


@lru_cache(maxsize=1)
def _processor() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _built() -> Path:
    """The shared library for these very sources; compiled where it is not in the cache."""
    flags = [*FLAGS, *(f"-D{name}={size}" for name, size in SIZES.items())]
    flags += [f"-m{name.replace('_', '')}" for name in (*NEEDED, PRODUCTS) if name in _processor()]
    told = hashlib.sha256(" ".join(flags).encode())
    for source in SOURCES:
        told.update(source.read_bytes())
    folder = _cache() / "native"
    path = folder / f"kernels-{told.hexdigest()[:16]}.so"
    if not path.exists():
        compiler = shutil.which(os.environ.get("CC") or "cc")
        if compiler is None:
            raise Unavailable("no C compiler (cc) is installed")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as work:
                _compile(compiler, flags, Path(work)).replace(path)  # whole or not at all, if several processes do this
        except OSError as fault:
            raise Unavailable(f"{folder}: {fault.strerror or fault}") from None
    return path


def _cache() -> Path:
    """The user's cache folder, as ``recguide.models.cache_dir`` finds it (kernels import nothing from there)."""
    moved = os.environ.get("RECGUIDE_CACHE")
    return Path(moved or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "recguide")).expanduser()


def _compile(compiler: str, flags: Sequence[str], work: Path) -> Path:
    made = work / "kernels.so"
    # without OpenMP at the second call: its symbols are found in the library that torch has loaded, so that both use
    # the same threads
    sources = [str(source.absolute()) for source in SOURCES if source.suffix == ".c"]
    objects = [f"{Path(source).stem}.o" for source in sources]
    for command in ([compiler, *flags, "-c", *sources], [compiler, "-shared", "-o", made.name, *objects, "-lm"]):
        ran = subprocess.run(command, cwd=work, capture_output=True, text=True)
        if ran.returncode:
            words = (ran.stderr.strip() or f"exit status {ran.returncode}").splitlines()
            raise Unavailable(f"{compiler} failed: {next((w for w in words if 'error' in w), words[0])}")
    return made


def multiplies() -> bool:
    """Whether ``linear`` is the best product here: a processor with matrix tiles (AMX) has oneDNN use them."""
    return "amx_bf16" not in _processor()


def pack(weight: Tensor) -> Tensor:
    """[out, in] as ``linear`` reads it: [panels of 32 outputs, in / 2, 32, 2], zeros behind the last output.

    ``in`` must be even.
    """
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = weight.new_zeros(panels * PANEL, inputs)
    padded[:outputs] = weight
    return padded.view(panels, PANEL, inputs // 2, 2).transpose(1, 2).contiguous()


def unpack(packed: Tensor, outputs: int) -> Tensor:
    """The weight [outputs, in] that ``pack`` was given."""
    panels, pairs = packed.shape[:2]
    return packed.transpose(1, 2).reshape(panels * PANEL, 2 * pairs)[:outputs].contiguous()


class Weights(ctypes.Structure):
    """A weight [outputs, in] in the order of ``pack``; ``in`` must be even."""

    _fields_ = (("w", P), ("outputs", C), ("pairs", C))

    def __init__(self, weight: Tensor):
        self.packed = pack(weight)
        super().__init__(self.packed.data_ptr(), len(weight), self.packed.shape[1])
        self.address = ctypes.addressof(self)


class Factors(ctypes.Structure):
    """An adapter's factors of projections that stand side by side: A [rank, in] and B [out, rank] of each."""

    _fields_ = (("a", P), ("b", P), ("first", P), ("ranks", C), ("rank_pairs", C))

    def __init__(self, downs: Sequence[Tensor], ups: Sequence[Tensor]):
        rank = len(downs[0])
        first = [i * rank for i, up in enumerate(ups) for _ in range(len(up) // PANEL)]
        self.down, self.up = pack(torch.cat(tuple(downs))), pack(torch.cat(tuple(ups)))
        self.offsets = torch.tensor(first, dtype=torch.int32)
        tensors = self.down, self.up, self.offsets
        super().__init__(*(t.data_ptr() for t in tensors), rank * len(downs), self.up.shape[1])
        self.address = ctypes.addressof(self)

    @staticmethod
    def fit(downs: Sequence[Tensor], ups: Sequence[Tensor]) -> bool:
        """Whether panels of outputs belong to one projection each, and all have one rank."""
        ranks = {len(down) for down in downs} | {up.shape[1] for up in ups}
        return len(ranks) == 1 and not any(n % 2 for n in ranks) and not any(len(up) % PANEL for up in ups)


def linear(
    x: Tensor, weights: Weights, onto: Tensor | None = None, factors: Factors | None = None, split: int = 0
) -> Tensor:
    """x [rows, in] times a weight: [rows, outputs], with an adapter's part on rows from ``split`` on. Where ``onto`` is
    given, it is added to and returned."""
    rows = len(x)
    y = torch.empty(rows, weights.outputs, dtype=torch.bfloat16) if onto is None else onto
    low = None if factors is None else torch.empty(rows - split, factors.ranks, dtype=torch.bfloat16)
    library().linear(
        x.data_ptr(), x.stride(0), weights.address, y.data_ptr(), y.stride(0), rows, onto is not None,
        factors and factors.address, split, None if low is None else low.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return y


class Projection(NamedTuple):
    """A map and what an adapter adds to it, if anything."""

    weights: Weights
    factors: Factors | None


class _Map(ctypes.Structure):
    _fields_ = (("weights", P), ("factors", P))


class _Layer(ctypes.Structure):
    _fields_ = (("input_norm", P), ("post_norm", P), *((name, _Map) for name in ("qkv", "o", "gate_up", "down")))


class Decoder(ctypes.Structure):
    """A model from tokens to the last norm, as ``decode`` reads it."""

    _fields_ = (
        *((name, P) for name in ("layers_at", "embedding", "norm")),
        ("vocab", ctypes.c_uint64),
        *((name, C) for name in ("count", "size", "heads", "kv_heads", "width")),
        ("eps", F),
    )

    def __init__(
        self, layers: Sequence[tuple[Tensor, Tensor, Mapping[str, Projection]]], embedding: Tensor, norm: Tensor,
        *, heads: int, kv_heads: int, width: int, eps: float,
    ):  # fmt: skip
        """Of each layer the weights (float32) of its two norms and its maps qkv, o, gate_up and down; embedding [vocab,
        size]; the weight (float32) of the last norm. ``width`` is that of a head."""
        self.layers = (_Layer * len(layers))(*(_Layer(a.data_ptr(), b.data_ptr(), **_maps(m)) for a, b, m in layers))
        self._kept = layers, embedding, norm  # what the addresses point at
        addresses = (ctypes.addressof(self.layers), embedding.data_ptr(), norm.data_ptr())
        super().__init__(*addresses, *embedding.shape[:1], len(layers), embedding.shape[1], heads, kv_heads, width, eps)
        maps = layers[0][2]
        ranks = max((p.factors.ranks for *_, maps in layers for p in maps.values() if p.factors), default=0)
        qkv, gate_up = maps["qkv"].weights.outputs, maps["gate_up"].weights.outputs
        size, queries = embedding.shape[1], heads * width
        self.work = (size, size, qkv, queries + kv_heads * width, queries, gate_up, gate_up // 2, ranks)
        """Numbers a row that a step needs room for: hidden, normed, ..., low."""


def _maps(projections: Mapping[str, Projection]) -> dict[str, _Map]:
    return {name: _Map(p.weights.address, p.factors and p.factors.address) for name, p in projections.items()}


class StepCache(NamedTuple):
    """Where all layers find a step's K/V: caches [layers, slots, kv_heads, tokens, head_dim], where the rows' own go,
    and what each row sees."""

    k: Tensor
    v: Tensor
    places: Places
    attention: NativeAttention


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, P) for name in ("tokens", "positions", "slots", "keys", "mask", "cos", "sin", "k", "v")),
        *((name, N) for name in ("layer", "slot", "head")),
        ("seen", P),
        *((name, P) for name in ("hidden", "normed", "mixed", "turned", "attended", "pair", "gated", "low")),
        *((name, C) for name in ("rows", "split", "drafts")),
    )


def decode(
    decoder: Decoder, tokens: Tensor, positions: Tensor, mask: Tensor | None, rotary: tuple[Tensor, Tensor],
    cache: StepCache, split: int | None,
) -> Tensor:  # fmt: skip
    """Hidden states [rows, size] behind the last norm.

    tokens, positions int64 [rows]; tokens outside the vocabulary stand for ``mask`` [size], which must be there then.
    rotary as in ``rotate``, of all positions up to the last. An adapter serves rows from ``split`` on (None: no row).
    """
    rows, places = len(tokens), cache.places
    work = [torch.empty(rows, width, dtype=torch.bfloat16) for width in decoder.work]
    masked = None if mask is None else mask.data_ptr()
    step = _Step(
        *(t.data_ptr() for t in (tokens, positions, places.slots, places.keys)), masked,
        *(t.data_ptr() for t in (*rotary, cache.k, cache.v)), *cache.k.stride()[:3], cache.attention.address,
        *(t.data_ptr() for t in work), rows, rows if split is None else split, places.first_draft_row,
    )  # fmt: skip
    library().decode(ctypes.byref(decoder), ctypes.byref(step), torch.get_num_threads())
    return work[1]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [rows, width] over the root of its mean square, times ``weight`` (float32)."""
    y = torch.empty(x.shape, dtype=torch.bfloat16)
    library().rms_norm(
        x.data_ptr(), x.stride(0), weight.data_ptr(), eps, y.data_ptr(), *x.shape, torch.get_num_threads()
    )
    return y


def silu_product(x: Tensor) -> Tensor:
    """silu(gate) * up [rows, width] of x [rows, 2 width], gate first."""
    rows, width = len(x), x.shape[1] // 2
    y = torch.empty(rows, width, dtype=torch.bfloat16)
    library().silu_product(x.data_ptr(), x.stride(0), y.data_ptr(), rows, width, torch.get_num_threads())
    return y


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [rows, heads, head_dim]; cos, sin [rows, 1, head_dim]: the first half of sin carries the
    minus of the rotation."""
    y = torch.empty(x.shape, dtype=torch.bfloat16)
    library().rotate(
        x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), y.data_ptr(), *x.shape, torch.get_num_threads()
    )
    return y


def store_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, keys: Tensor, first_draft_row: int
) -> None:
    """k, v [rows, kv_heads, head_dim] to places ``keys`` of ``slots`` (int64 [rows]) in one layer's cache
    [slots, kv_heads, keys, head_dim]. What is not finite in draft rows is stored as 0."""
    rows, kv_heads, width = k.shape
    library().store_kv(
        k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), k_cache.data_ptr(), v_cache.data_ptr(),
        *k_cache.stride()[:2], slots.data_ptr(), keys.data_ptr(), rows, first_draft_row, kv_heads, width,
    )  # fmt: skip


def best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Logits (float32) and ids (int64) of the ``count`` best tokens of every row [rows, count], best first, of equals
    the first. The best logit is NaN where one of the row is."""
    rows, vocab = logits.shape
    ids = torch.empty(rows, count, dtype=torch.int64)
    values = torch.empty(rows, count)
    library().best_tokens(
        logits.data_ptr(), logits.stride(0), rows, vocab, count, ids.data_ptr(), values.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return values, ids


def exponential_sums(logits: Tensor, best: Tensor) -> Tensor:
    """[2, rows]: sums of e^d and of d e^d over a row's logits, d being how far each is below ``best`` [rows, ..]."""
    rows, vocab = logits.shape
    sums = torch.empty(rows, 2)
    library().exponential_sums(
        logits.data_ptr(), logits.stride(0), best.data_ptr(), best.stride(0), rows, vocab, sums.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return sums.T


class _Chain(ctypes.Structure):
    _fields_ = (
        *((name, P) for name in ("embedding", "head", "tokens", "up", "weight", "lead", "base", "ids")),
        ("eps", F),
        *((name, C) for name in ("rows", "candidates", "hidden", "rank")),
    )


class ChainWeights(NamedTuple):
    """embedding, head [vocab, hidden]; tokens, up packed; weight (float32) and eps of the norm of embeddings."""

    embedding: Tensor
    head: Tensor
    tokens: Tensor
    up: Tensor
    weight: Tensor
    eps: float

    def of(self, lead: Tensor, base: Tensor, ids: Tensor) -> _Chain:
        """lead [rows, rank]; base (float32) and ids (int64) [rows, candidates]. All dense."""
        *tensors, eps = self
        addresses = (t.data_ptr() for t in (*tensors, lead, base, ids))
        return _Chain(*addresses, eps, *ids.shape, self.head.shape[1], lead.shape[1])

    def work(self, rows: int, lead: Tensor) -> Tensor:
        return torch.empty(rows * (3 * self.head.shape[1] + lead.shape[1]), dtype=torch.bfloat16)


def chain_scores(weights: ChainWeights, lead: Tensor, base: Tensor, ids: Tensor, before: Tensor) -> Tensor:
    """Scores [rows, candidates] (float32) of the chain behind ``before`` int64 [rows, 2]; at most GROUP rows."""
    scores, order, work = torch.empty(ids.shape), torch.arange(len(ids)), weights.work(len(ids), lead)
    library().chain_scores(
        ctypes.byref(weights.of(lead, base, ids)), order.data_ptr(), before.data_ptr(), work.data_ptr(),
        scores.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return scores


def chain_follow(
    weights: ChainWeights, lead: Tensor, base: Tensor, ids: Tensor, counts: Sequence[int],
    befores: Sequence[Sequence[int]],
) -> tuple[list[list[int]], list[list[float]]]:  # fmt: skip
    """Rows choose their best candidate one after the other, knowing those before them: of each row the two best ids;
    and their probabilities, the entropy in nats, and whether the best score is finite (1 or 0).

    ``counts`` rows hang together each, behind two known tokens of ``befores`` (the nearer one first); at most GROUP
    runs of rows. Scores are rounded to bfloat16 first, as logits are.
    """
    starts = accumulate(counts, initial=0)
    lines = torch.tensor([(s, c, *b) for s, c, b in zip(starts, counts, befores, strict=False)])
    best, figures = torch.empty(len(ids), 2, dtype=torch.int64), torch.empty(len(ids), 4)
    made, work = torch.empty(len(lines), ids.shape[1]), weights.work(len(lines), lead)
    library().chain_follow(
        ctypes.byref(weights.of(lead, base, ids)), lines.data_ptr(), len(lines), work.data_ptr(), made.data_ptr(),
        best.data_ptr(), figures.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return best.tolist(), figures.tolist()


def attends(head_dim: int) -> bool:
    """Whether ``store_kv`` and ``NativeAttention`` take heads of this size."""
    return head_dim % 32 == 0 and head_dim <= WIDEST


class _Seen(ctypes.Structure):
    _fields_ = (("order", P), ("rules", P), ("tiles", P), ("count", C), ("scale", F))


class NativeAttention:
    """``step_attention`` in C: the step's tables, and the call. Requests are cut into tiles of rows."""

    def __init__(self, step: StepRows, group_size: int, scale: float):
        self._group = group_size
        order = [row for rows in step.owned for row in rows]
        starts = accumulate(map(len, step.owned), initial=0)
        most = QUERIES // group_size
        tiles = [
            (slot, start + first, min(most, len(rows) - first))
            for slot, start, rows in zip(step.slots, starts, step.owned, strict=False)
            for first in range(0, len(rows), most)
        ]
        rules = zip(step.limits, step.lows, step.highs, strict=True)
        self._tables = [torch.tensor(table, dtype=torch.int32) for table in (order, list(rules), tiles)]
        self._seen = _Seen(*(t.data_ptr() for t in self._tables), len(tiles), scale * LOG2_E)
        self.address = ctypes.addressof(self._seen)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[rows, heads * head_dim]; k and v [slots, kv_heads, tokens, head_dim] are dense in the last two."""
        rows, heads, width = q.shape
        out = torch.empty(rows, heads * width, dtype=torch.bfloat16)
        library().attention(
            q.data_ptr(), q.stride(0), k.data_ptr(), v.data_ptr(), *k.stride()[:2], out.data_ptr(), self.address,
            k.shape[1], self._group, width, torch.get_num_threads(),
        )  # fmt: skip
        return out
