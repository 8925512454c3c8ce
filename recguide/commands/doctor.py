"""``recguide doctor``: what runs on this machine, and what falls back."""

from __future__ import annotations

import importlib.util
import os
import shutil

import psutil
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recguide import __version__
from recguide.errors import RecGuideError
from recguide.kernels.backend import NATIVE, TORCH, TRITON
from recguide.models import embedded
from recguide.models.adapter import load_adapter
from recguide.models.cache_dir import cache_dir
from recguide.models.checkpoint import fingerprint_folder, read_json
from recguide.models.config import from_hf
from recguide.models.linear import can_multiply, can_pack
from recguide.models.loader import default_device, default_dtype, shipped_adapter
from recguide.provenance import device_name, kernels

NAMES = {TRITON: "Triton", NATIVE: "C", TORCH: "torch reference"}
KERNELS = "attention, signals"
BUSY, LOOKED = 0.25, 0.5  # share of all cores taken by other processes that is worth a note, seconds it is watched for
GOOD, NOTE, BAD = "[green]ok[/green]", "[yellow]note[/yellow]", "[red]bad[/red]"


def doctor() -> None:
    """Show device, dtype, threads, model and adapter, and everything that is not as it could be.

    Exit status 1 when something is broken (not when it is only absent).
    """
    rows = [*_software(), *_device(), *_model()]
    table = Table("", "what", "found", show_lines=False)
    for state, what, found in rows:
        table.add_row(state, what, escape(found))
    Console().print(table)
    if any(state == BAD for state, *_ in rows):
        raise typer.Exit(1)


def _software() -> list[tuple[str, str, str]]:
    rows = [(GOOD, "recguide", __version__), (GOOD, "torch", torch.__version__)]
    for name, purpose in (("triton", "GPU kernels"), ("sklearn", "predictors"), ("jupyterlab", "the lab")):
        there = importlib.util.find_spec(name) is not None
        rows.append((GOOD if there else NOTE, name, "found" if there else f"not installed ({purpose})"))
    return rows


def _device() -> list[tuple[str, str, str]]:
    device = default_device()
    rows = [(GOOD, "device", device_name())]
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    rows += [(GOOD if threads <= cores else NOTE, "threads", f"{threads} on {cores} cores"), _load()]
    try:
        dtype = default_dtype(device)
    except RecGuideError as fault:
        return [*rows, (BAD, KERNELS, str(fault))]
    rows.append((GOOD if dtype == torch.bfloat16 else NOTE, "dtype", str(dtype).removeprefix("torch.")))
    return [*rows, _products(torch.empty(2, 2, dtype=dtype, device=device)), _kernels(device, dtype)]


def _load() -> tuple[str, str, str]:
    """What other processes take of the cores: threads of a step wait for each other several hundred times."""
    taken = psutil.cpu_percent(LOOKED) / 100
    if taken < BUSY:
        return GOOD, "load", f"{taken:.0%} of the cores are taken"
    advice = "steps will be slow; where engines share cores, start each with OMP_NUM_THREADS=1"
    return NOTE, "load", f"other processes take {taken:.0%} of the cores: {advice}"


def _products(weight: torch.Tensor) -> tuple[str, str, str]:
    if can_multiply(weight):
        return GOOD, "linear maps", "C kernels, packed"
    if can_pack(weight):
        return GOOD, "linear maps", "oneDNN, prepacked"
    return GOOD if weight.device.type == "cuda" else NOTE, "linear maps", "torch"


def _kernels(device: torch.device, dtype: torch.dtype) -> tuple[str, str, str]:
    """The references are what is expected on a CPU without bfloat16 instructions only."""
    backend, reason = kernels(device)
    expected = backend != TORCH or (device.type == "cpu" and dtype != torch.bfloat16)
    return GOOD if expected else NOTE, KERNELS, f"{NAMES[backend]}: {reason}"


def _model() -> list[tuple[str, str, str]]:
    free = shutil.disk_usage(next(p for p in (cache_dir(), *cache_dir().parents) if p.exists())).free
    rows = [(GOOD if free > embedded.BYTES_NEEDED else NOTE, "cache", f"{cache_dir()}, {free / 1e9:.1f} GB free")]
    if not embedded.is_cached():
        return [*rows, (NOTE, embedded.NAME, "not cached yet; 'recguide models fetch' brings it (93 MB)")]
    try:
        embedded.verify_cached()
    except RecGuideError as fault:
        return [*rows, (BAD, embedded.NAME, str(fault))]
    rows.append((GOOD, embedded.NAME, str(embedded.embedded_folder())))
    return [*rows, _adapter()]


def _adapter() -> tuple[str, str, str]:
    path = shipped_adapter(embedded.NAME)
    if path is None:
        return NOTE, "draft adapter", "none shipped: drafts come from the plain weights and are rarely accepted"
    folder = embedded.embedded_folder()
    try:
        load_adapter(path, from_hf(read_json(folder / "config.json")), fingerprint_folder(folder))
    except RecGuideError as fault:
        return BAD, "draft adapter", str(fault)
    return GOOD, "draft adapter", path.name
