"""Does the lab stay small and fast? A real browser on a real JupyterLab, for minutes under a changing load.

Run it as ``python -m recguide.lab.soak --minutes 10 --json data/results/soak.json``. It reports the slopes of the
kernel's and the page's memory, messages a second, and throughput with the dashboard drawing and in quiet mode against
the engine alone, in interleaved turns with the browser open on the same cores.

While memory is watched nobody is connected to the browser, which would keep what it is told of the page: the kernel
changes its load itself, and sizes are those of the processes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from playwright.sync_api import Page, Playwright, sync_playwright
from recguide.lab.robot import Dashboard, Notebook
from recguide.lab.robot_server import Server, running_browser, running_lab
from rich.console import Console

from recguide.commands.options import progress_bar
from recguide.provenance import provenance, write_json

SAMPLE = 5.0  # seconds between samples of memory, and on one load
COUNTED = 30.0  # seconds in which messages are counted
TURN = 12.0  # seconds of each turn of the throughput comparison
NOTEBOOK = "4_live_lab.ipynb"
LOADS = (
    {"concurrency": 1, "policy": "ar-row:5"},
    {"concurrency": 16, "policy": "ar"},
    {"concurrency": 4, "policy": "overlap:5"},
    {"concurrency": 32, "policy": "ar", "temperature": 0.7},
    {"concurrency": 8, "policy": "linear:8", "temperature": 0.0},
)
WALK = f"""
import itertools, threading
walk_ended = threading.Event()
def walk():
    for load in itertools.cycle({LOADS!r}):
        if walk_ended.wait({SAMPLE}):
            return
        lab.session.change(**load)
threading.Thread(target=walk, daemon=True).start()
"""
STEADY = {"concurrency": 4, "policy": "ar-row:5", "category": "writing", "max_new_tokens": 200, "temperature": 0.0}
MODES = {
    "alone": "lab.dashboard.close(); lab.session.quiet(True)",
    "drawing": "lab.session.quiet(False); lab.dashboard.run()",
    "quiet": "lab.dashboard.run(); lab.session.quiet(True); lab.dashboard.hush(True)",
}


def main(
    minutes: Annotated[float, typer.Option(help="How long the load changes, warm-up not counted.")] = 10.0,
    warm_up: Annotated[
        float, typer.Option(help="Minutes before: every place of the K/V cache is to hold a long text once.")
    ] = 7.0,
    turns: Annotated[int, typer.Option(help="Turns of the throughput comparison; 0 leaves it out.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Where to store the result.")] = None,
) -> None:
    """Soak the live lab and print what became of memory, messages and throughput."""
    with (
        tempfile.TemporaryDirectory() as base,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running_browser(Path(profile)) as address,
        running_lab(Path(base)) as server,
        sync_playwright() as play,
    ):
        result = {"provenance": provenance(), "minutes": minutes, "warm_up_minutes": warm_up}
        with _connected(play, address) as page:
            notebook, lab = Notebook(page, server, NOTEBOOK), Dashboard(page)
            notebook.run_all()
            lab.wait()
            kernel = psutil.Process(int(notebook.value("__import__('os').getpid()")))
            notebook.start(WALK)
            result["before"] = _inside(page)
        samples = _watch(kernel, warm_up * 60, minutes * 60)
        steady = [s for s in samples if s["at_s"] > warm_up * 60]
        result |= {"samples": samples, "slopes_mb_per_minute": _slopes(steady)}
        with _connected(play, address) as page:
            result |= _afterwards(page, server, turns)
    typer.echo(_summary(result))
    if json is not None:
        write_json(json, result)


@contextmanager
def _connected(play: Playwright, address: str) -> Iterator[Page]:
    """The browser's page, for as long as somebody is connected to it."""
    browser = play.chromium.connect_over_cdp(address)
    try:
        context = browser.contexts[0]
        page = context.pages[0] if context.pages else context.new_page()
        page.set_viewport_size({"width": 1280, "height": 1000})
        yield page
    finally:
        browser.close()  # leaves it


def _inside(page: Page) -> dict[str, float]:
    """What the page holds once it has collected its garbage: megabytes of script, nodes, listeners."""
    inspect = page.context.new_cdp_session(page)
    inspect.send("Performance.enable")
    inspect.send("HeapProfiler.collectGarbage")
    metrics = {m["name"]: m["value"] for m in inspect.send("Performance.getMetrics")["metrics"]}
    inspect.detach()
    return {
        "heap_mb": metrics["JSHeapUsedSize"] / 1e6,
        "nodes": metrics["Nodes"],
        "listeners": metrics["JSEventListeners"],
    }


def _watch(kernel: psutil.Process, warm_up: float, seconds: float) -> list[dict[str, float]]:
    """Resident megabytes of the kernel and of the page, from outside."""
    samples, started = [], time.monotonic()
    with progress_bar(Console()) as progress:
        task = progress.add_task("soaking", total=warm_up + seconds)
        while (elapsed := time.monotonic() - started) < warm_up + seconds:
            time.sleep(SAMPLE)
            sizes = {"kernel_mb": kernel.memory_info().rss / 1e6, "page_mb": _page_rss() / 1e6}
            samples.append({"at_s": elapsed + SAMPLE, **sizes})
            progress.update(task, completed=elapsed + SAMPLE)
    return samples


def _page_rss() -> int:
    """Resident bytes of the largest of the browser's page processes."""
    sizes = [0]
    for child in psutil.Process().children(recursive=True):
        try:
            if "--type=renderer" in child.cmdline():
                sizes.append(child.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return max(sizes)


def _afterwards(page: Page, server: Server, turns: int) -> dict[str, Any]:
    """What the page holds now, its messages a second, and throughput by mode."""
    found = {"after": _inside(page)}
    frames: Counter[str] = Counter()
    inspect = page.context.new_cdp_session(page)
    inspect.send("Network.enable")  # the socket was opened before anybody was connected
    inspect.on("Network.webSocketFrameReceived", lambda _: frames.update(received=1))
    page.wait_for_timeout(COUNTED * 1000)
    found["messages_per_s"] = frames["received"] / COUNTED
    inspect.detach()
    notebook, lab = Notebook(page, server, NOTEBOOK, shown=True), Dashboard(page)
    notebook.value("walk_ended.set()")
    return found | {"throughput": _compare(page, notebook, turns), "complaints": lab.complaints}


def _slopes(samples: list[dict[str, float]]) -> dict[str, float]:
    """Of straight lines through the samples."""
    if len(samples) < 3:
        return {}
    minutes = [s["at_s"] / 60 for s in samples]
    names = ("kernel_mb", "page_mb")
    return {name: float(np.polyfit(minutes, [s[name] for s in samples], 1)[0]) for name in names}


def _compare(page: Page, notebook: Notebook, turns: int) -> dict[str, Any]:
    """Tokens/s in each mode, turn by turn; ratios are to the turn's own 'alone'."""
    notebook.value(f"lab.session.change(**{STEADY!r})")
    page.wait_for_timeout(5000)
    runs = [{mode: rate for mode, rate in _turn(page, notebook, number)} for number in range(turns)]
    ratios = {m: statistics.median(run[m] / run["alone"] for run in runs) for m in MODES if m != "alone" and runs}
    return {"turns": runs, "ratio_to_alone": ratios}


def _turn(page: Page, notebook: Notebook, number: int) -> Iterator[tuple[str, float]]:
    modes = list(MODES) if number % 2 == 0 else list(MODES)[::-1]
    for mode in modes:
        notebook.start(MODES[mode])
        page.wait_for_timeout(2000)
        first, began = int(notebook.value("lab.session.engine.stats.committed")), time.monotonic()
        page.wait_for_timeout(TURN * 1000)
        last = int(notebook.value("lab.session.engine.stats.committed"))
        yield mode, (last - first) / (time.monotonic() - began)
        notebook.start("lab.dashboard.hush(False)")


def _summary(result: dict[str, Any]) -> str:
    slopes = ", ".join(f"{name} {slope:+.2f}" for name, slope in result["slopes_mb_per_minute"].items())
    ratios = ", ".join(f"{mode} {ratio:.3f}x" for mode, ratio in result["throughput"]["ratio_to_alone"].items())
    return (
        f"slopes, MB a minute: {slopes or 'too short'}\nmessages a second: {result['messages_per_s']:.1f}\n"
        f"the page before and after: {result['before']}, {result['after']}\n"
        f"throughput to the engine alone: {ratios or 'not compared'}\ncomplaints: {len(result['complaints'])}"
    )


if __name__ == "__main__":
    typer.run(main)
