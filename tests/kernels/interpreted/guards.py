"""Memory that shows what a kernel forgets to write, and what it writes or reads beside its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

BAND = 64  # numbers on either side


def poison(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else -(2**31) + 7


def poisoned(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor full of poison in the middle of a larger one, and the larger one."""
    count = torch.Size(size).numel()
    around = torch.full((count + 2 * BAND,), poison(dtype), dtype=dtype)
    return around[BAND : BAND + count].view(size), around


def inside_poison(value: Tensor) -> Tensor:
    """A copy of ``value`` with poison before and behind it."""
    copy, _ = poisoned(value.shape, value.dtype)
    return copy.copy_(value)


@contextmanager
def guarded() -> Iterator[None]:
    """Uninitialised tensors hold poison, and what lies around them is unchanged at the end."""
    made: list[Tensor] = []
    plain = Tensor.new_empty

    def empty(*size, dtype=None, device=None) -> Tensor:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        inner, around = poisoned(shape, dtype or torch.get_default_dtype())
        made.append(around)
        return inner

    def new_empty(self: Tensor, *size, **options) -> Tensor:
        # the interpreter itself asks with options
        return plain(self, *size, **options) if options else empty(*size, dtype=self.dtype)

    with patch.object(torch, "empty", empty), patch.object(Tensor, "new_empty", new_empty):
        yield
    assert made
    for around in made:
        for band in (around[:BAND], around[-BAND:]):
            untouched = band.isnan() if around.is_floating_point() else band == poison(around.dtype)
            assert untouched.all(), "written outside of the result"


def relative_error(made: Tensor, exact: Tensor) -> float:
    """|made - exact| / |exact|, as root mean squares; what is not finite in either must be equal."""
    odd = ~exact.isfinite()
    assert torch.equal(made.double()[odd], exact[odd])
    difference = made.double()[~odd] - exact[~odd]
    assert difference.isfinite().all()
    return float(difference.norm() / exact[~odd].norm().clamp(min=1e-30))


LIMIT = {torch.float32: 1e-5, torch.float16: 1e-3}
