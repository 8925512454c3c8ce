"""One call from a name to a model ready for the engine: weights, tokenizer, draft adapter, and what fell back."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import psutil
import torch
from torch import Tensor

from recguide.errors import RecGuideError
from recguide.kernels.backend import TORCH
from recguide.models import embedded
from recguide.models.adapter import DraftAdapter, FusedAdapter, load_adapter
from recguide.models.backbone import Backbone
from recguide.models.chain import Chain
from recguide.models.checkpoint import Weights, fingerprint_folder, fingerprint_tensors, read_json, weight_bytes
from recguide.models.config import ModelConfig, from_hf
from recguide.models.memory import keep_freed_memory, limit_kernel_cache
from recguide.models.tokenizer import ByteTokenizer, HFTokenizer, Tokenizer
from recguide.provenance import kernels

BUNDLED_ADAPTER = "linear_spec_lora"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass
class Model:
    """A loaded model. ``fallbacks`` lists, in words, everything that is not as it should be (rule R8).

    ``cost_table`` is the file whose step times policies plan with: that of a simulated device, or None for this one.
    """

    name: str
    config: ModelConfig
    backbone: Backbone
    tokenizer: Tokenizer
    fingerprint: str
    adapter: DraftAdapter | None = None
    adapter_path: Path | None = None
    folder: Path | None = None
    fallbacks: list[str] = field(default_factory=list)
    cost_table: Path | None = None

    _fused: tuple[DraftAdapter | None, FusedAdapter] | None = field(default=None, repr=False)

    @property
    def dtype_name(self) -> str:
        """``bfloat16`` and the like, as results and logs name it."""
        return str(self.backbone.dtype).removeprefix("torch.")

    @property
    def draft_shift(self) -> int:
        """The convention of its drafts: the adapter's, or that of the model's own configuration without one."""
        return self.config.conventions.draft_shift if self.adapter is None else self.adapter.config.draft_shift

    @property
    def adapt_tokens(self) -> bool:
        """Whether the adapter serves the known tokens of branches, as published, or masks only."""
        return self.adapter is None or self.adapter.config.adapt_tokens

    @property
    def fused_adapter(self) -> FusedAdapter:
        """The adapter in the backbone's dtype; without one, plain weights and a stand-in mask embedding.

        Made once for each adapter.
        """
        if self._fused is None or self._fused[0] is not self.adapter:
            self._fused = (self.adapter, self._fuse())
        return self._fused[1]

    def _fuse(self) -> FusedAdapter:
        backbone, table = self.backbone, self.backbone.embedding
        if self.adapter is not None:
            base = [layer.maps for layer in backbone.layers] if backbone.head.packed else None
            fused = self.adapter.fused(backbone.dtype, backbone.device, base)
            if self.adapter.chain is not None:
                head = table if self.config.tie_embeddings else backbone.head.dense()
                fused.chain = Chain(self.adapter.chain, table, head, pack=backbone.head.packed)
            return fused
        mask = table.float().mean(0).to(table.dtype) if self.config.has_virtual_mask else None
        return FusedAdapter([{} for _ in range(self.config.num_layers)], mask)


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it natively or the C kernels do, else float32."""
    if device.type == "cuda" or kernels(device).native:
        return torch.bfloat16
    if platform.machine() in ("x86_64", "AMD64"):  # oneDNN counts processors that only widen it, and those are slow
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def load_model(
    name: str = embedded.NAME,
    *,
    dtype: str | None = None,
    device: str | None = None,
    adapter: str | Path | None = "auto",
    pack: bool = True,
) -> Model:
    """Load the embedded default, a local folder in Hugging Face layout, or a hub name.

    ``adapter`` is a folder, ``"auto"`` (the one shipped for this model or inside its folder, if any) or None. Raises
    RecGuideError for an unknown name or dtype, damaged weights, too little memory, or an adapter of another model.
    """
    where = _device(device) if device else default_device()
    kind = _dtype(dtype) if dtype else default_dtype(where)
    serving = kernels(where)  # a fault of the user's choice is told before any work
    if where.type == "cpu":
        limit_kernel_cache()
    folder = find_folder(name)
    config = _read_config(folder)
    weights = Weights(folder, config, kind, where)
    check_memory(folder, config, kind, where)
    model = Model(
        name=name,
        config=config,
        backbone=Backbone(config, weights, pack=pack),
        tokenizer=HFTokenizer(folder),
        fingerprint=fingerprint_folder(folder),
        folder=folder,
    )
    _attach_adapter(model, adapter)
    if kind != torch.float32 and default_dtype(where) == torch.float32:
        model.fallbacks.append(
            f"{model.dtype_name} is only emulated by this processor, and slow; float32 is what it multiplies"
        )
    elif kind == torch.bfloat16 and where.type == "cpu" and serving.backend == TORCH:
        model.fallbacks.append(f"steps of few rows take about twice as long as with the C kernels ({serving.reason})")
    if where.type == "cpu":
        keep_freed_memory()  # only now: what loading frees along the way would lie in holes between the weights
    return model


def check_memory(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
    """RecGuideError when the weights of ``folder`` cannot fit into what is free on ``device``."""
    need, free = weight_bytes(config, dtype), free_bytes(device)
    if need > free:
        raise RecGuideError(
            f"{folder}: the weights take {need / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, {device} has "
            f"{free / 1e9:.1f} GB free; free memory, choose another device, a smaller dtype or a smaller model"
        )


def free_bytes(device: torch.device) -> int:
    """Memory that a process may still take on ``device``."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as fault:
        reason = str(fault).splitlines()[0]
        raise RecGuideError(f"device {name!r} is not usable here ({reason}); try cpu") from None
    return device


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise RecGuideError(f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def find_folder(name: str) -> Path:
    """The folder of a model: the cache for the default, a path as given, or a hub snapshot."""
    if name == embedded.NAME:
        folder = embedded.fetch()
        embedded.verify_cached()
        return folder
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _snapshot(name)
    raise RecGuideError(f"model {name!r} is neither {embedded.NAME}, a folder, nor a hub name (owner/name)")


def _snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as fault:  # the hub client has no common base for its network, name and gate errors
        reason = str(fault).splitlines()[0]
        raise RecGuideError(f"model {name!r}: no such folder here, and the hub gave: {reason}") from None


def _read_config(folder: Path) -> ModelConfig:
    config = from_hf(read_json(folder / "config.json"), str(folder / "config.json"))
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    if eos is None:
        return config
    return dataclasses.replace(config, eos_ids=tuple(eos) if isinstance(eos, list) else (eos,))


def shipped_adapter(name: str) -> Path | None:
    """The adapter folder that ships in ``data/`` for this model, if there is one."""
    folder = Path(str(resources.files("recguide.data"))) / "drafter" / name
    return folder if (folder / "adapter_config.json").exists() else None


def _attach_adapter(model: Model, adapter: str | Path | None) -> None:
    path = _own_adapter(model) if adapter == "auto" else Path(adapter) if adapter else None
    if path is None:
        rarely = " and are rarely accepted" if model.config.has_virtual_mask else ""
        model.fallbacks.append(f"no draft adapter: drafts come from the plain weights{rarely}")
        return
    model.adapter, model.adapter_path = load_adapter(path, model.config, model.fingerprint), path
    if not model.adapter.fingerprint and model.folder not in path.parents:
        model.fallbacks.append(f"draft adapter {path} names no model: that it belongs to this one cannot be checked")


def _own_adapter(model: Model) -> Path | None:
    """The adapter that ships for a model: in ``data/`` for the embedded default, else inside the model's folder."""
    bundled = model.folder / BUNDLED_ADAPTER
    return bundled if (bundled / "adapter_config.json").exists() else shipped_adapter(model.name)


def random_weights(config: ModelConfig, seed: int = 0, scale: float = 0.5) -> dict[str, Tensor]:
    """Random float32 weights, wide enough that greedy tokens vary."""
    from recguide.models.checkpoint import expected_tensors

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_tensors(config).items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = 1 + 0.1 * noise if "norm" in name else noise * scale
    return weights


TINY = ModelConfig(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=512,
    eos_ids=(299,),
)


def tiny_model(seed: int = 0, config: ModelConfig = TINY, *, adapter_rank: int = 4, pack: bool = True) -> Model:
    """A random float32 model of a few thousand parameters with a byte tokenizer and a random draft adapter."""
    from recguide.models.adapter import AdapterConfig

    weights = random_weights(config, seed)
    fingerprint = fingerprint_tensors(weights)
    model = Model("tiny", config, Backbone(config, weights, pack=pack), ByteTokenizer(), fingerprint)
    if adapter_rank:
        torch.manual_seed(seed)
        shape = AdapterConfig(rank=adapter_rank, alpha=adapter_rank, chain=adapter_rank)
        adapter = DraftAdapter(config, shape, fingerprint)
        for parameter in adapter.parameters():
            parameter.data.normal_(0, 0.1)
        model.adapter = adapter.requires_grad_(False)
    return model
