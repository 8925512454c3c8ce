"""Starts the tests of ``interpreted/`` in processes of their own, where Triton's interpreter is switched on."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_under_the_interpreter(file):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "RECGUIDE_KERNELS"))}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", file]
    run = subprocess.run(command, cwd=ROOT, env=environment | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
