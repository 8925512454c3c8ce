"""The draft adapter: LoRA on draft rows only, and the learned embedding of the mask.

Stored as PEFT does it (``adapter_config.json``, ``adapter_model.safetensors``), with the mask embedding as one more
tensor and the fingerprint of the base model in the safetensors metadata. In memory the factors of one fused
projection (q/k/v, gate/up) stand side by side. On a CPU a product of few rows costs its launch and the reading of its
weights, not its arithmetic: there the C kernels add the adapter's part to the very sums of the projection. Without them
A rides on a copy of the projection, and the factors are also merged into another, for steps in which every row drafts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from recguide.errors import RecGuideError
from recguide.kernels import native
from recguide.kernels.adapter import add_low_rank
from recguide.models.chain import Chain, ChainFactors
from recguide.models.checkpoint import canonical, file_sha256
from recguide.models.config import ModelConfig
from recguide.models.linear import Linear

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
TARGETS = tuple(name.split(".")[-1] for names in FUSED.values() for name in names)
MASK_KEY = "mask_embedding"
SHIFT_KEY, TOKENS_KEY, CHAIN_KEY = "draft_shift", "adapt_tokens", "chain_rank"
PLAIN_LORA = {
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""Settings of PEFT that must have these values (or be absent)."""
PEFT_PREFIX = "base_model.model."
FINGERPRINT_KEY = "base_model_fingerprint"


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every projection of a layer, by its Hugging Face name."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """``draft_shift`` is what its rows learned to predict: the token at their own position (0) or behind it (1).
    ``adapt_tokens``: it serves every row of a block; else mask rows only, and known tokens take the plain weights.
    ``layers`` are those that have factors (none named: all). ``chain`` is the rank of its chain (0: none)."""

    rank: int
    alpha: float
    draft_shift: int = 0
    adapt_tokens: bool = True
    targets: tuple[str, ...] = TARGETS
    layers: tuple[int, ...] = ()
    chain: int = 0

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class DraftAdapter(nn.Module):
    """Trainable factors A [rank, in], B [out, rank] per layer and target, the mask embedding [hidden], and the chain.

    A model with a mask token of its own has no ``mask_embedding`` here (None); ``chain`` is None where its rank is 0.
    """

    def __init__(self, model: ModelConfig, config: AdapterConfig, fingerprint: str):
        super().__init__()
        unknown = set(config.targets) - set(TARGETS)
        if unknown:
            raise RecGuideError(f"adapter target {sorted(unknown)} is unknown; known: {', '.join(TARGETS)}")
        outside = [layer for layer in config.layers if not 0 <= layer < model.num_layers]
        if outside:
            raise RecGuideError(f"adapter layer {outside[0]} is unknown; the model has 0..{model.num_layers - 1}")
        self.model_config, self.config, self.fingerprint = model, config, fingerprint
        self.mask_embedding = nn.Parameter(torch.zeros(model.hidden_size)) if model.has_virtual_mask else None
        self.chain = ChainFactors(model.hidden_size, config.chain) if config.chain else None
        self.factors = nn.ParameterDict()
        shapes = projection_shapes(model)
        for layer in config.layers or range(model.num_layers):
            for name, (out, into) in shapes.items():
                if name.split(".")[-1] in config.targets:
                    key = _key(layer, name)
                    self.factors[key + "|A"] = nn.Parameter(torch.randn(config.rank, into) / into**0.5)
                    self.factors[key + "|B"] = nn.Parameter(torch.zeros(out, config.rank))

    def fused(
        self, dtype: torch.dtype, device: torch.device, base: Sequence[Mapping[str, Linear]] | None = None
    ) -> FusedAdapter:
        """Side-by-side factors for the backbone. Differentiable while this module's parameters need gradients.

        ``base`` are the backbone's own maps of each layer, by the names in FUSED: A then rides on copies of them.
        """
        shapes = projection_shapes(self.model_config)
        layers = []
        for layer in range(self.model_config.num_layers):
            pairs = {}
            for fused, names in FUSED.items():
                if self._present(layer, names):
                    factors = self._factors(layer, names, shapes, dtype, device)
                    # with plain known tokens no step is made of draft rows alone
                    own = None if base is None else base[layer][fused]
                    pairs[fused] = low_rank(*factors, own, merge=self.config.adapt_tokens)
            layers.append(pairs)
        mask = self.mask_embedding
        return FusedAdapter(layers, None if mask is None else mask.to(device, dtype))

    def _factors(self, layer: int, names: tuple[str, ...], shapes, dtype, device) -> tuple[list[Tensor], list[Tensor]]:
        """A and scale * B of every projection; ranks are 0 where one has none."""
        downs, ups = [], []
        for name in names:
            key, (out, into) = _key(layer, name), shapes[name]
            present = key + "|A" in self.factors
            down = self.factors[key + "|A"] if present else torch.zeros(0, into)
            up = self.factors[key + "|B"] * self.config.scale if present else torch.zeros(out, 0)
            downs.append(down.to(device, dtype))
            ups.append(up.to(device, dtype))
        return downs, ups

    @property
    def shape(self) -> str:
        """Products of a step that drafts, and their rank: what the adapter costs, whatever it has learned."""
        fused = sum(len(self._present(layer, names)) > 0 for layer, names in self._places())
        chain = f"+chain{self.config.chain}" if self.config.chain else ""
        return f"lora{self.config.rank}x{fused}{chain}"

    def _places(self):
        return ((layer, names) for layer in range(self.model_config.num_layers) for names in FUSED.values())

    def _present(self, layer: int, names: tuple[str, ...]) -> list[str]:
        """The projections among ``names`` that have factors in this layer."""
        return [n for n in names if _key(layer, n) + "|A" in self.factors]

    @torch.no_grad()
    def start_from(self, known: DraftAdapter) -> None:
        """Take over what ``known`` has of this adapter's factors; further ranks stay as they are and add nothing."""
        if known.config.rank > self.config.rank or known.config.scale != self.config.scale:
            raise RecGuideError(
                f"start from rank {known.config.rank}, scale {known.config.scale:g}: this adapter has rank "
                f"{self.config.rank}, scale {self.config.scale:g}; give the same scale and at least the same rank"
            )
        if 0 < self.config.chain < known.config.chain:
            raise RecGuideError(f"start from a chain of rank {known.config.chain}: this one has {self.config.chain}")
        if self.mask_embedding is not None and known.mask_embedding is not None:
            self.mask_embedding.copy_(known.mask_embedding)
        for key, theirs in known.factors.items():
            if key in self.factors:
                self.factors[key][tuple(map(slice, theirs.shape))] = theirs
        if self.chain is not None and known.chain is not None:
            self.chain.start_from(known.chain)

    def stored_parameters(self) -> dict[str, Tensor]:
        """Every parameter by its name in the file."""
        mask = {} if self.mask_embedding is None else {MASK_KEY: self.mask_embedding}
        chain = {} if self.chain is None else {f"chain.{name}": p for name, p in self.chain.named_parameters()}
        return mask | chain | {_peft_name(k): v for k, v in self.factors.items()}

    def save(self, folder: Path, metadata: dict[str, str]) -> None:
        """Write the PEFT-style pair of files; bfloat16 factors."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: v.detach().to(torch.bfloat16).contiguous() for n, v in self.stored_parameters().items()}
        partial = folder / "adapter_model.safetensors.partial"
        own = {FINGERPRINT_KEY: self.fingerprint, SHIFT_KEY: str(self.config.draft_shift), "format": "pt"}
        own |= {TOKENS_KEY: str(int(self.config.adapt_tokens)), CHAIN_KEY: str(self.config.chain)}
        save_file(tensors, partial, metadata={**metadata, **own})
        partial.replace(folder / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.config.rank,
            "lora_alpha": self.config.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(self.config.targets),
            "inference_mode": True,
        }
        if self.config.layers:
            config["layers_to_transform"] = list(self.config.layers)
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


Adapted = Callable[[Linear, Tensor, int, Tensor | None], Tensor]
"""(projection, x [rows, in], first row that the adapter serves, what to add to) -> [rows, out]."""


def low_rank(downs: list[Tensor], ups: list[Tensor], own: Linear | None, *, merge: bool) -> Adapted:
    """The adapter's part of a fused projection, whose parts have factors A [rank, in] and scale * B [out, rank].

    ``own`` is the projection itself where the factors may be packed with it (they have no gradient then). ``merge``:
    steps in which every row drafts are worth a copy of the projection with the factors merged in.
    """
    if own is not None and own.native and native.Factors.fit(downs, ups):
        return NativeLowRank(native.Projection(own.native, native.Factors(downs, ups)))
    return LowRank(torch.cat(downs), torch.block_diag(*ups), None if own is None else own.dense(), merge=merge)


class NativeLowRank:
    """Both products at once in C: the adapter's part is added to the same sums."""

    def __init__(self, projection: native.Projection):
        self.projection = projection

    def __call__(self, linear: Linear, x: Tensor, split: int, onto: Tensor | None = None) -> Tensor:
        return native.linear(x, self.projection.weights, onto, self.projection.factors, split)


class LowRank:
    """One projection with its factors A [rank, in] and scale * B [out, rank].

    With ``own``, the projection's plain weight [out, in], one product with [own; A] gives both x own^T and x A^T, and
    the maps are prepacked; where ``merge`` is set, rows that all draft take one product with own + scale * B A.
    """

    def __init__(self, down: Tensor, up: Tensor, own: Tensor | None = None, *, merge: bool = False):
        self._width = None if own is None else len(own)
        self.merged = None
        if own is not None and merge:
            self.merged = Linear((own.float() + up.float() @ down.float()).to(own.dtype), pack=True)
        self.down = Linear(down if own is None else torch.cat((own, down)), pack=own is not None)
        self.up = Linear(up, pack=own is not None)

    def __call__(self, linear: Linear, x: Tensor, split: int, onto: Tensor | None = None) -> Tensor:
        """[rows, out]: ``linear`` of x [rows, in], plus scale * B A x on rows from ``split`` on."""
        made = self._product(linear, x, split)
        return made if onto is None else onto + made

    def _product(self, linear: Linear, x: Tensor, split: int) -> Tensor:
        if self.merged is not None and split == 0:
            return self.merged(x)
        if self._width is None:
            return add_low_rank(linear(x), x, self.down.weight, self.up.weight, split)
        both = self.down(x)
        out = both[:, : self._width]
        self.up(both[split:, self._width :], onto=out if split == 0 else out[split:])
        return out


class FusedAdapter:
    """What a step needs: per layer the low-rank maps of the fused projections, the mask embedding, and the chain."""

    def __init__(self, layers: list[dict[str, Adapted]], mask_embedding: Tensor | None, chain: Chain | None = None):
        self.layers, self.mask_embedding, self.chain = layers, mask_embedding, chain
        self.native = all(isinstance(part, NativeLowRank) for parts in layers for part in parts.values())


def _key(layer: int, name: str) -> str:
    return f"{layer}/{name}".replace(".", "/")  # ParameterDict keys may not hold dots


def _peft_name(key: str) -> str:
    path, factor = key.split("|")
    layer, block, projection = path.split("/")
    return f"{PEFT_PREFIX}model.layers.{layer}.{block}.{projection}.lora_{factor}.weight"


def load_adapter(folder: Path, model: ModelConfig, fingerprint: str) -> DraftAdapter:
    """Read an adapter folder for this very model.

    Adapters of other makers name no model (``fingerprint`` is "" then): shapes and names are all that can be checked.
    Raises RecGuideError where a file is missing or damaged, a tensor has the wrong shape, or the adapter was trained
    for another model.
    """
    config = _read_config(folder)
    path = folder / "adapter_model.safetensors"
    try:
        with safe_open(path, "pt") as stored:
            about = stored.metadata() or {}
            adapter = DraftAdapter(model, _own_settings(config, about, path), fingerprint)
            owner = about.get(FINGERPRINT_KEY)
            other_makers = owner is None and adapter.mask_embedding is None
            if owner != fingerprint and not other_makers:
                raise RecGuideError(
                    f"{path}: adapter was trained for model {owner}, this model is {fingerprint}; "
                    "train one with 'recguide train-drafter' or choose the adapter of this model"
                )
            adapter.fingerprint = owner or ""
            _fill(adapter, stored, path)
    except FileNotFoundError:
        raise RecGuideError(f"{path}: not found; an adapter folder holds adapter_model.safetensors") from None
    except OSError as fault:
        raise RecGuideError(f"{path}: {fault}") from None
    except RecGuideError:
        raise
    except Exception as fault:  # safetensors raises its own type for a damaged file
        raise RecGuideError(f"{path}: damaged ({fault}); restore the file or train the adapter again") from None
    return adapter.requires_grad_(False)


def _own_settings(config: AdapterConfig, about: Mapping[str, str], path: Path) -> AdapterConfig:
    """With what the weights' metadata add to PEFT's configuration."""
    chain = about.get(CHAIN_KEY, "0")
    if not chain.isdecimal():
        raise RecGuideError(f"{path}: {CHAIN_KEY} is {chain!r}; allowed: a rank, or 0 for no chain")
    shift, tokens = _bit(about, SHIFT_KEY, "0", path), _bit(about, TOKENS_KEY, "1", path)
    return replace(config, draft_shift=shift, adapt_tokens=bool(tokens), chain=int(chain))


def _bit(about: Mapping[str, str], key: str, default: str, path: Path) -> int:
    stored = about.get(key, default)
    if stored not in ("0", "1"):
        raise RecGuideError(f"{path}: {key} is {stored!r}; allowed: 0 or 1")
    return int(stored)


def adapter_sha256(folder: Path) -> str:
    """Hash of an adapter's weights, to name it in results."""
    return file_sha256(folder / "adapter_model.safetensors")


def _read_config(folder: Path) -> AdapterConfig:
    path = folder / "adapter_config.json"
    try:
        raw = json.loads(path.read_text())
        other = [key for key, plain in PLAIN_LORA.items() if (raw.get(key) or plain) != plain]
        layers = raw.get("layers_to_transform") or ()
        config = AdapterConfig(
            rank=raw["r"],
            alpha=raw["lora_alpha"],
            targets=tuple(raw["target_modules"]),
            layers=(layers,) if isinstance(layers, int) else tuple(layers),
        )
    except FileNotFoundError:
        raise RecGuideError(f"{path}: not found; an adapter folder holds adapter_config.json") from None
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise RecGuideError(f"{path}: not an adapter configuration ({fault!r})") from None
    if other:
        raise RecGuideError(f"{path}: {other[0]} is {raw[other[0]]!r}; plain LoRA without biases is supported")
    return config


def _fill(adapter: DraftAdapter, stored, path: Path) -> None:
    wanted = adapter.stored_parameters()
    # PEFT puts the base model's own names behind its prefix, and those depend on who published the model
    names = list(stored.keys())
    found = {
        name if name in wanted else PEFT_PREFIX + canonical(name.removeprefix(PEFT_PREFIX)): name for name in names
    }
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise RecGuideError(f"{path}: {len(missing)} tensors missing, first {missing[0]}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            value = stored.get_tensor(found[name])
            if value.shape != parameter.shape:
                raise RecGuideError(f"{path}: {name} is {tuple(value.shape)}, expected {tuple(parameter.shape)}")
            parameter.copy_(value)
