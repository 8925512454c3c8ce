"""``recguide demo``: an answer growing block by block, then AR against self-speculation on real prompts."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from recguide.bench.measure import Bench, BenchSettings
from recguide.bench.prompts import load_prompts, spread
from recguide.bench.table import bench_table
from recguide.commands.bench import caption, run_with_progress
from recguide.commands.options import measure_step_times, open_model, say_fallbacks
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.engine.text import TextStream
from recguide.models import embedded

QUESTION = "Explain in a few sentences why the sky is blue during the day and red at sunset."
POLICIES = ("ar", "linear:6", "ar-row:5", "quadratic:3", "recguide")
STYLES = ("bold green", "white")


def demo() -> None:
    """Watch a real 135M-parameter model answer by self-speculation, then see what it gains over AR. Two minutes.

    Text that appears together was drafted in one forward and verified in one: green is what the draft guessed right,
    white is the verifier's own token. The learned controller chooses what each forward does.
    """
    console = Console()
    model = open_model(embedded.NAME, None, None, "auto", console)
    measure_step_times(model, POLICIES, console)
    engine = Engine(model, POLICIES[-1], max_concurrency=1)
    say_fallbacks(engine.policy, console)
    _watch(engine, console)
    prompts = spread(load_prompts(), 6)
    measured = Bench(model, prompts, BenchSettings(policies=POLICIES, concurrency=(1, 8), max_new_tokens=32, repeats=1))
    run_with_progress(measured, console, None)
    result = measured.result()
    console.print(bench_table(result["summary"], caption(result)))
    console.print('next: [bold]recguide generate "..."[/bold], [bold]recguide bench --help[/bold]', highlight=False)


def _watch(engine: Engine, console: Console) -> None:
    request = engine.submit([{"role": "user", "content": QUESTION}], SamplingParams(max_new_tokens=96))
    text, stream = Text(), TextStream(engine.model.tokenizer)
    with Live(console=console, refresh_per_second=12) as live:
        while not engine.idle:
            for delta in engine.step():
                for number, token in enumerate(delta.tokens, 1):
                    text.append(stream.feed([token]), STYLES[number == len(delta.tokens)])
                title = f"{engine.policy.spec}: {request.stats.tokens_per_forward or 0:.2f} tokens per forward"
                live.update(Panel(text, title=title, subtitle=QUESTION))
