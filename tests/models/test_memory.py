"""Loading a large checkpoint takes little more memory than its weights: no second copy."""

import json
import os
import platform
import subprocess
import sys

import pytest

from recguide.models.make_tiny import make_tiny
from recguide.models.memory import PRIMITIVES, limit_kernel_cache
from tests.helpers import native_dtype

GIGABYTE = {
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
LOAD = """
import json, resource, sys, torch
from recguide.models.loader import load_model
from recguide.models.checkpoint import weight_bytes

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024

torch.ops.mkldnn._linear_pointwise  # what a first use of oneDNN takes is not the weights'
before = peak()
model = load_model(sys.argv[1], dtype=sys.argv[2], device="cpu", adapter=None)
print(json.dumps({"peak": peak() - before, "weights": weight_bytes(model.config, model.backbone.dtype)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_the_peak_of_loading_a_gigabyte_is_at_most_15_percent_above_its_weights(tmp_path):
    """In the dtype that this device takes: where 16-bit products are emulated, oneDNN packs through a wider copy."""
    make_tiny("nld", tmp_path / "model", **GIGABYTE)
    ended = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "model"), native_dtype()],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(ended.stdout.splitlines()[-1])
    assert measured["weights"] > 0.95e9
    assert measured["peak"] <= 1.15 * measured["weights"], measured["peak"] / measured["weights"]


FAULTS = """
import resource, sys, torch
from recguide.models.memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def work():
    return float(torch.ones(8 << 20).sum())  # 32 MB, taken and freed

for _ in range(20):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_what_is_freed_is_kept_for_the_next_step():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("given back", "kept")
    }
    assert faults["kept"] < faults["given back"] / 20, faults


def test_the_kernel_cache_is_limited_unless_the_user_says_otherwise(monkeypatch):
    name, places = PRIMITIVES
    monkeypatch.delenv(name, raising=False)
    limit_kernel_cache()
    assert os.environ[name] == places
    monkeypatch.setenv(name, "7")
    limit_kernel_cache()
    assert os.environ[name] == "7"
