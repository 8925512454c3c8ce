"""Decision logs of a small model: real plans, real outcomes."""

from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.trace.recorder import Recorder
from tests.helpers import small_model

PROMPTS = [[1 + i % 9, 2 + i % 7, 3, (5 * i) % 11] for i in range(30)]


def record(folder, policy="explore", model=None, prompts=PROMPTS, tokens=60):
    engine = Engine(model or small_model(shift=1), policy, max_concurrency=8, max_context=128)
    params = [
        SamplingParams(max_new_tokens=tokens, temperature=0.5, seed=i, eos_ids=frozenset()) for i in range(len(prompts))
    ]
    with Recorder(engine, folder):
        engine.generate(prompts, params)
    return folder
