"""The Triton kernels compiled for GPUs that are not here: nothing spills, shared memory suffices."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def report(*arguments, **environment):
    """Run the report in a process of its own: an interpreted kernel cannot be compiled."""
    plain = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "recguide.kernels.compiled", *arguments]
    return subprocess.run(command, env=plain | environment, capture_output=True, text=True)


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_kernels_fit_without_spills(arch, tmp_path):
    run = report("--arch", str(arch), "--json", str(tmp_path / "report.json"), TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads((tmp_path / "report.json").read_text())
    names = {row["kernel"].split()[0] for row in rows}
    assert names == {"attention", "signals", "sample", "top_k", "accept", "adapter"}
    for row in rows:
        assert row["spilled"] == 0, row
        assert 0 < row["registers"] <= 255, row
        assert row["shared"] <= {80: 163, 90: 227, 100: 227}[arch] * 1024, row


def test_the_interpreter_is_refused():
    run = report(TRITON_INTERPRET="1")
    assert run.returncode == 2
    assert "TRITON_INTERPRET is set" in run.stderr
