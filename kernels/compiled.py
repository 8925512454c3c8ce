"""What the Triton kernels become on a GPU, without one: registers, spills and shared memory of each, per architecture.

    python -m recguide.kernels.compiled               # a table for sm_80, sm_90 and sm_100
    python -m recguide.kernels.compiled --arch 90 --json report.json

Compiles with the assembler in triton's own wheel. It finds type errors, spills and too much shared memory; it cannot
find races or wrong results. ``TRITON_INTERPRET`` must not be set.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import accept_triton, adapter_triton, attention_triton, signals_triton
from .backend import interpreting

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory a block may have, by architecture."""
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32", "int64": "i64", "bool": "i1"}


class Case(NamedTuple):
    """A kernel as it is launched: types of its pointers (int32 scalars are not named), constants, warps and stages."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2


def attention(arch: int, dtype: str, head_dim: int, pairs: int, splits: int) -> Case:
    tile = attention_triton.tile_for(pairs, head_dim, 4 if dtype == "float32" else 2, arch // 10)
    halves = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), f"*{SHORT[dtype]}")
    types = halves | dict.fromkeys(("parts_ptr", "weights_ptr"), "*fp32") | {"scale": "fp32"}
    types |= dict.fromkeys(("order_ptr", "starts_ptr", "slots_ptr", "bounds_ptr"), "*i32")
    constants = {"HEADS": 32, "GROUP": 4, "HEAD_DIM": head_dim, "D": head_dim}
    constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "SPLITS": splits, "WIDE": dtype == "float32"}
    name = f"attention {dtype} d{head_dim} {tile.block_m}x{tile.block_n} splits {splits}"
    return Case(name, attention_triton.attention_fwd_kernel, types, constants, tile.warps, tile.stages)


ATTENTION = (
    *(("bfloat16", 128, pairs, splits) for pairs, splits in ((4, 8), (4, 1), (32, 8), (64, 1), (999, 1))),
    *(("bfloat16", 256, pairs, splits) for pairs, splits in ((4, 8), (999, 1))),
    ("bfloat16", 16, 999, 1),
    ("float16", 64, 36, 2),
    ("float32", 128, 4, 8),
    *(("float32", head_dim, 999, 1) for head_dim in (64, 128, 256)),
)
"""(dtype, head_dim, pairs of rows and heads, splits)"""


def cases(arch: int) -> Iterator[Case]:
    """Every kernel as it is launched for an 8B model, and attention of other head sizes."""
    yield from (attention(arch, *sizes) for sizes in ATTENTION)
    join = {"out_ptr": "*bf16", "parts_ptr": "*fp32", "weights_ptr": "*fp32"}
    constants = {"HEAD_DIM": 128, "D": 128, "SPLITS": 32}
    yield Case("attention join", attention_triton.attention_join_kernel, join, constants, 1)

    row = {"logits_ptr": "*bf16", "values_ptr": "*fp32", "ids_ptr": "*i32"}
    wide = row | {"states_ptr": "*i32", "temperature_ptr": "*fp32"}
    for name, entropy, sample in (("signals", False, False), ("signals entropy", True, False), ("sample", False, True)):
        constants = {"ENTROPY": entropy, "SIGNALS": not sample, "SAMPLE": sample, "BLOCK": signals_triton.BLOCK}
        yield Case(name, signals_triton.signals_fwd_kernel, wide, constants, 8)
    joined = {"values_ptr": "*fp32", "ids_ptr": "*i32", "tokens_ptr": "*i64", "chances_ptr": "*fp32"}
    joined |= {"summary_ptr": "*fp32"}
    constants = {"ENTROPY": True, "SIGNALS": True, "SAMPLE": False, "PARTS": 64}
    yield Case("signals join", signals_triton.signals_join_kernel, joined, constants, 1)
    yield Case("top_k", signals_triton.top_k_fwd_kernel, row, {"TOP_K": 8, "BLOCK": signals_triton.TOP_BLOCK})

    names = accept_triton.accept_fwd_kernel.arg_names
    flat = {name: "*i64" for name in names if name.endswith("_ptr")} | {"unconditional_ptr": "*i1"}
    yield Case("accept", accept_triton.accept_fwd_kernel, flat, {"MOST": 32, "BRANCHES": 32}, 1)

    shape = adapter_triton.WARPS, adapter_triton.STAGES
    for dtype in ("bfloat16", "float32"):
        kind, base = f"*{SHORT[dtype]}", {"BLOCK_M": 64, "BLOCK_R": adapter_triton.BLOCK_R, "WIDE": dtype == "float32"}
        down = {"x_ptr": kind, "down_ptr": kind, "parts_ptr": "*fp32"}
        constants = base | {"BLOCK_K": adapter_triton.BLOCK_K[4 if dtype == "float32" else 2]}
        yield Case(f"adapter down {dtype}", adapter_triton.adapter_down_kernel, down, constants, *shape)
        up = {"parts_ptr": "*fp32", "up_ptr": kind, "out_ptr": kind}
        constants = base | {"BLOCK_N": adapter_triton.BLOCK_N}
        yield Case(f"adapter up {dtype}", adapter_triton.adapter_up_kernel, up, constants, *shape)


def compile_case(case: Case, arch: int) -> dict[str, Any]:
    """Registers a thread, spilled bytes a thread, and shared bytes a block of one kernel on one architecture."""
    names = case.kernel.arg_names
    signature = {n: "constexpr" if n in case.constants else case.types.get(n, "i32") for n in names}
    # what a launch would find out: tensors are aligned, and so are their rows; a step's tables need not be
    aligned = [i for i, n in enumerate(names) if n.endswith("_ptr") or n.startswith("stride")]
    aligned = [i for i in aligned if names[i] not in attention_triton.TABLES]
    source = ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs=case.constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": case.warps, "num_stages": case.stages}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    used = _resource_usage(made.asm["cubin"])
    return {"kernel": case.name, "arch": arch, "shared": made.metadata.shared, **used}


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """What the assembler says of a kernel: registers, and local memory, which holds what did not fit in them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return {"registers": found["REG"], "spilled": found["STACK"] + found["LOCAL"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recguide.kernels.compiled", description=__doc__.split("\n\n")[0])
    known = sorted(SHARED_LIMIT)
    parser.add_argument("--arch", type=int, action="append", choices=known, help="architecture; default: all of these")
    parser.add_argument("--json", type=Path, help="write the report here too")
    arguments = parser.parse_args()
    if interpreting():
        parser.error("TRITON_INTERPRET is set: an interpreted kernel cannot be compiled; unset it")
    rows = []
    print(f"{'kernel':44} {'arch':>6} {'registers':>9} {'spilled':>8} {'shared':>8}")
    for arch in arguments.arch or known:
        for case in cases(arch):
            row = compile_case(case, arch)
            rows.append(row)
            over = " over the limit" if row["shared"] > SHARED_LIMIT[arch] else ""
            print(f"{row['kernel']:44} sm_{arch:3} {row['registers']:9} {row['spilled']:8} {row['shared']:8}{over}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
