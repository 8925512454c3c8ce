"""The learned controller on a simulated device: real text, drafts and acceptance, and the same figures every time."""

from importlib import resources
from pathlib import Path

import pytest

from recguide.bench.measure import Bench, BenchSettings
from recguide.bench.prompts import default_set, load_prompts, spread

DEVICE = Path(str(resources.files("recguide.data"))) / "profiles" / "smollm2-135m-bfloat16.json"
FIXED = ("ar", "ar-row:3", "linear:8")


@pytest.mark.slow
@pytest.mark.parametrize("load", [1, 4])
def test_it_earns_what_the_better_fixed_policy_earns(real_float32, monkeypatch, load):
    """On this device long blocks pay at one request and do not at four: no fixed policy is best at both."""
    monkeypatch.setattr(real_float32, "cost_table", DEVICE)
    settings = BenchSettings(policies=(*FIXED, "recguide"), concurrency=(load,), max_new_tokens=24, repeats=1)
    measured = Bench(real_float32, spread(load_prompts(default_set()), 12), settings)
    measured.run()
    rates = {run["policy"]: run["aggregate_tok_s"] for run in measured.runs}
    assert rates["recguide"] >= 0.95 * max(rates[policy] for policy in FIXED), rates
    assert (rates["linear:8"] > rates["ar"]) is (load == 1), rates
