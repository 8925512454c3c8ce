"""Which version of the kernels is chosen, and why."""

import importlib.util

import pytest
import torch
from recguide.kernels import backend
from recguide.kernels.backend import VARIABLE, choose
from recguide.kernels.native import Unavailable

from recguide.errors import RecGuideError
from tests.helpers import make_engine, small_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No choice is remembered, and nothing in the environment makes one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choose.cache_clear()
    yield
    choose.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """Lets triton be installed or not, a GPU have a compute capability, and C kernels be unavailable for a reason."""

    def library(reason):
        if reason:
            raise Unavailable(reason)

    def make(installed=True, capability=(9, 0), no_c="the processor has no avx512f"):
        monkeypatch.setattr(backend, "library", lambda: library(no_c))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU of the test")

    return make


def test_a_cpu_takes_c_where_it_can(machine):
    machine(no_c=None)
    assert choose(CPU) == ("native", "a CPU with AVX-512")
    assert choose(CPU).native and not choose(CPU).triton


def test_a_cpu_that_cannot_takes_the_references(machine):
    machine()
    reason = "triton needs a GPU, not a cpu device; no C kernels: the processor has no avx512f"
    assert choose(CPU) == ("torch", reason)
    assert not choose(CPU).native and not choose(CPU).triton


def test_the_c_kernels_take_bfloat16_without_gradients(machine):
    machine(no_c=None)
    x = torch.zeros(1, dtype=torch.bfloat16)
    assert not backend.native_takes(x)
    with torch.no_grad():
        assert backend.native_takes(x)
        assert not backend.native_takes(x.float())
    choose.cache_clear()
    machine()
    with torch.no_grad():
        assert not backend.native_takes(x)


def test_a_gpu_takes_triton(machine):
    machine()
    assert choose(GPU) == ("triton", "a GPU (a GPU of the test)")
    assert choose(GPU).triton


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"installed": False}, "not installed"), ({"capability": (7, 5)}, "compute capability 7.5; the kernels need 8.0")],
)
def test_a_gpu_that_cannot_says_why(machine, facts, words):
    machine(**facts)
    assert choose(GPU).backend == "torch"
    assert words in choose(GPU).reason


def test_the_interpreters_switch_lets_a_cpu_run_triton(machine, monkeypatch):
    machine()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose(CPU).triton
    assert "interpreted" in choose(CPU).reason


@pytest.mark.parametrize("device", [GPU, CPU])
def test_torch_can_be_forced(machine, monkeypatch, device):
    machine(no_c=None)
    monkeypatch.setenv(VARIABLE, "Torch ")
    assert choose(device) == ("torch", "RECGUIDE_KERNELS=torch")


@pytest.mark.parametrize(
    ("value", "device", "words"),
    [
        ("cuda", CPU, "RECGUIDE_KERNELS is 'cuda'; allowed: triton, native, torch, or unset"),
        ("triton", CPU, "RECGUIDE_KERNELS is 'triton', but triton needs a GPU, not a cpu device; unset it"),
        ("native", GPU, "RECGUIDE_KERNELS is 'native', but C kernels need a CPU; unset it"),
        ("native", CPU, "RECGUIDE_KERNELS is 'native', but no C kernels: the processor has no avx512f; unset it"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(machine, monkeypatch, value, device, words):
    machine()
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match="^" + words):
        choose(device)


def test_without_triton_it_cannot_be_forced(machine, monkeypatch):
    machine(installed=False)
    monkeypatch.setenv(VARIABLE, "triton")
    with pytest.raises(ValueError, match=r"triton is not installed .*; unset it, or set it to 'torch'"):
        choose(GPU)


def test_an_engine_refuses_in_one_line(machine, monkeypatch):
    machine()
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(RecGuideError, match="RECGUIDE_KERNELS is 'fast'"):
        make_engine(small_model())


def test_an_engine_knows_its_kernels(machine):
    machine()
    assert make_engine(small_model()).kernels.backend == "torch"


def test_processors_of_a_cpu():
    assert (backend.processors(CPU), backend.capability(CPU)) == (1, 9)
