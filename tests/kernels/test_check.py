"""The check for GPU machines: proved on a CPU under the interpreter, and plain words where it cannot run."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments, module="recguide.kernels.check", folder=None):
    plain = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, env=plain, cwd=folder, capture_output=True, text=True)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_all_of_it_runs_in_small(tmp_path):
    # from the repository root, as on a machine where the project is not installed
    run = check("--out", tmp_path / "new", "--interpret", module="kernels.check", folder=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads((tmp_path / "new" / "check.json").read_text())
    assert found["complete"] and all(row["ok"] for row in found["correctness"])
    assert {row["kernel"].split()[0] for row in found["correctness"]} == {
        "attention", "signals", "sample", "adapter", "accept"
    }  # fmt: skip
    for section in ("attention", "signals", "adapter", "accept"):
        for row in found[section]:
            assert row["triton_ms"] > 0 and all(ms > 0 for ms in row["torch_ms"].values())
    for row in found["attention"]:
        assert set(row["torch_ms"]) == {"SDPA, dense mask", "folded products", "FlexAttention"} and not row["failed"]
        assert max(row["differences"].values()) < 1e-5
        assert row["other_tiles_ms"]
    text = (tmp_path / "new" / "check.txt").read_text()
    assert "quadratic:2 C=2" in text and "ceilings" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(tmp_path):
    run = check("--out", tmp_path)
    assert run.returncode == 2
    assert "no GPU found; on a CPU, --interpret proves the script itself" in run.stderr


def test_help_teaches():
    run = check("--help")
    assert run.returncode == 0
    for word in ("--interpret", "--context", "--seed", "Exit status", "python -m kernels.check"):
        assert word in run.stdout
