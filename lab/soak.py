"""Does the lab stay small and fast? A real browser on a real JupyterLab, for minutes under a changing load.

Run it as ``python -m recguide.lab.soak --minutes 10 --json data/results/soak.json``. It reports the slopes of the
kernel's and the page's memory, messages a second, and throughput with the dashboard drawing and in quiet mode against
the engine alone, in interleaved turns with the browser open on the same cores.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from playwright.sync_api import Page, sync_playwright
from recguide.lab.robot import Dashboard, Notebook
from recguide.lab.robot_server import launch, running_lab

from recguide.provenance import provenance, write_json

SAMPLE = 5.0  # seconds between samples of memory
TURN = 12.0  # seconds of each turn of the throughput comparison
LOADS = (
    {"concurrency": 1, "policy": "ar-row:5"},
    {"concurrency": 16, "policy": "ar"},
    {"concurrency": 4, "policy": "overlap:5"},
    {"concurrency": 32, "policy": "ar", "temperature": 0.7},
    {"concurrency": 8, "policy": "linear:8", "temperature": 0.0},
)
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
        sync_playwright() as play,
        launch(play) as browser,
        running_lab(Path(base)) as server,
    ):
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        frames = _count_messages(page)
        notebook = Notebook(page, server, "4_live_lab.ipynb")
        lab = Dashboard(page)
        notebook.run_all()
        lab.wait()
        result = {"provenance": provenance(), "minutes": minutes, "warm_up_minutes": warm_up}
        result |= _soak(page, notebook, frames, warm_up * 60, minutes * 60)
        result["throughput"] = _compare(page, notebook, turns)
        result["complaints"] = lab.complaints
    typer.echo(_summary(result))
    if json is not None:
        write_json(json, result)


def _count_messages(page: Page) -> Counter[str]:
    """Frames from the kernel to the page, counted as they come."""
    frames: Counter[str] = Counter()
    page.on("websocket", lambda socket: socket.on("framereceived", lambda _: frames.update(received=1)))
    return frames


def _soak(page: Page, notebook: Notebook, frames: Counter[str], warm_up: float, seconds: float) -> dict[str, Any]:
    """Change the load all the time and sample memory and messages."""
    inspect = page.context.new_cdp_session(page)
    inspect.send("Performance.enable")
    samples, started, turn, before = [], time.monotonic(), 0, frames["received"]
    while (elapsed := time.monotonic() - started) < warm_up + seconds:
        notebook.value(f"lab.session.change(**{LOADS[turn % len(LOADS)]!r})")
        turn += 1
        page.wait_for_timeout(SAMPLE * 1000)
        inspect.send("HeapProfiler.collectGarbage")
        metrics = {m["name"]: m["value"] for m in inspect.send("Performance.getMetrics")["metrics"]}
        samples.append(
            {
                "at_s": elapsed + SAMPLE,
                "kernel_mb": int(notebook.value("__import__('psutil').Process().memory_info().rss")) / 1e6,
                "page_mb": _page_rss() / 1e6,
                "page_heap_mb": metrics["JSHeapUsedSize"] / 1e6,
                "page_nodes": metrics["Nodes"],
                "page_listeners": metrics["JSEventListeners"],
                "messages_per_s": (frames["received"] - before) / SAMPLE,
            }
        )
        before = frames["received"]
    return {"samples": samples, "slopes_mb_per_minute": _slopes([s for s in samples if s["at_s"] > warm_up])}


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


def _slopes(samples: list[dict[str, float]]) -> dict[str, float]:
    """Of straight lines through the samples."""
    if len(samples) < 3:
        return {}
    minutes = [s["at_s"] / 60 for s in samples]
    names = ("kernel_mb", "page_mb", "page_heap_mb")
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
    most = max((s["messages_per_s"] for s in result["samples"]), default=0.0)
    slopes = ", ".join(f"{name} {slope:+.2f}" for name, slope in result["slopes_mb_per_minute"].items())
    ratios = ", ".join(f"{mode} {ratio:.3f}x" for mode, ratio in result["throughput"]["ratio_to_alone"].items())
    return (
        f"slopes, MB a minute: {slopes or 'too short'}\nmessages a second: at most {most:.1f}\n"
        f"throughput to the engine alone: {ratios or 'not compared'}\ncomplaints: {len(result['complaints'])}"
    )


if __name__ == "__main__":
    typer.run(main)
