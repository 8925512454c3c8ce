"""Which version of the kernels runs on a device, and why: Triton on a GPU, C on a CPU with AVX-512, the torch
references elsewhere.

``RECGUIDE_KERNELS=triton``, ``native`` or ``torch`` forces one. ``TRITON_INTERPRET=1`` (Triton's own switch) runs the
Triton versions on a CPU, a thousand times slower: for tests. Knows nothing of what the operations do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .native import Unavailable, library

VARIABLE = "RECGUIDE_KERNELS"
TRITON, NATIVE, TORCH = "triton", "native", "torch"
OLDEST = (8, 0)  # compute capability: bfloat16 products begin with sm_80


class Choice(NamedTuple):
    backend: str
    reason: str

    @property
    def triton(self) -> bool:
        return self.backend == TRITON

    @property
    def native(self) -> bool:
        return self.backend == NATIVE


def interpreting() -> bool:
    """Whether Triton's interpreter is switched on; Triton reads the switch when a kernel's module is imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


@lru_cache(maxsize=8)
def choose(device: torch.device) -> Choice:
    """The backend for tensors on ``device``, and the reason. Decided once a device: call ``choose.cache_clear`` after
    changing the environment.

    Raises ValueError when ``RECGUIDE_KERNELS`` is no known name, or names a backend that cannot run here.
    """
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted not in ("", *ABLE, TORCH):
        raise ValueError(f"{VARIABLE} is {wanted!r}; allowed: {', '.join(ABLE)}, {TORCH}, or unset (by the device)")
    if wanted == TORCH:
        return Choice(TORCH, f"{VARIABLE}={TORCH}")
    reasons = []
    for backend, able in ABLE.items():
        if wanted in ("", backend):
            can, reason = able(device)
            if can:
                return Choice(backend, reason)
            reasons.append(reason)
    if wanted:
        raise ValueError(f"{VARIABLE} is {wanted!r}, but {reasons[0]}; unset it, or set it to {TORCH!r}")
    return Choice(TORCH, "; ".join(reasons))


def native_takes(x: Tensor) -> bool:
    """Whether the C kernels compute on tensors like ``x``: no gradients, one dtype."""
    return x.dtype == torch.bfloat16 and not torch.is_grad_enabled() and choose(x.device).native


def _triton(device: torch.device) -> tuple[bool, str]:
    """Whether Triton can run on a device; the reason either way."""
    if device.type != "cuda" and not interpreting():
        return False, f"triton needs a GPU, not a {device.type} device"
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed (pip install 'recguide[triton]')"
    if interpreting():
        return True, "TRITON_INTERPRET is set: interpreted, for tests only"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST and torch.version.hip is None:
        return False, f"compute capability {capability[0]}.{capability[1]}; the kernels need {OLDEST[0]}.{OLDEST[1]}"
    return True, f"a GPU ({torch.cuda.get_device_name(device)})"


def _native(device: torch.device) -> tuple[bool, str]:
    """Whether the C kernels can run on a device; the reason either way."""
    if device.type != "cpu":
        return False, "C kernels need a CPU"
    try:
        library()
    except Unavailable as fault:
        return False, f"no C kernels: {fault}"
    return True, "a CPU with AVX-512"


ABLE = {TRITON: _triton, NATIVE: _native}


def launching(device: torch.device) -> contextlib.AbstractContextManager:
    """Kernels are launched on the tensors' device, whichever is the thread's own."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def capability(device: torch.device) -> int:
    """The major number of a GPU's compute capability; elsewhere that of a recent one."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


@lru_cache(maxsize=8)
def processors(device: torch.device) -> int:
    """Programs that run at once on a device: its multiprocessors; 1 under the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
