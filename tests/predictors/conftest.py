"""Decision logs of a small model, recorded once."""

import pytest

from tests.helpers import small_model
from tests.recorded import record


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    return record(tmp_path_factory.mktemp("logs") / "run")


@pytest.fixture(scope="session")
def unshifted_log(tmp_path_factory):
    return record(tmp_path_factory.mktemp("logs") / "run", model=small_model())
