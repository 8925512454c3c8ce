"""Are the Triton kernels right on this machine's GPU, and how fast are they?

One run, a few minutes: every kernel against float64 on the device, then medians against torch's own ways at the shapes
of an 8B model, beside the card's copy bandwidth and matrix product rate measured in the same run. Writes check.json and
check.txt. Needs torch and triton, and nothing else of this project than its kernels:

    python -m recguide.kernels.check --out DIR     # or, without an install, python -m kernels.check in the checkout
    python -m recguide.kernels.check --out DIR --interpret    # tiny sizes on a CPU: proves the script, not its times

Exit status: 0 all results are right, 1 some are wrong, 2 it could not run. Ctrl-C keeps what is done.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .backend import interpreting

SECONDS = 180  # after which nothing is tried that compiles for long


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m recguide.kernels.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for check.json and check.txt (made if missing)")
    parser.add_argument("--interpret", action="store_true", help="tiny sizes under Triton's interpreter, on a CPU")
    parser.add_argument("--seed", type=int, help="of the random cases (default: another one each time, and recorded)")
    parser.add_argument("--context", type=int, help="tokens in every request's cache for the timings (default 1024)")
    arguments = parser.parse_args()
    if arguments.context is not None and arguments.context < 0:
        parser.error(f"--context is {arguments.context}; allowed: >= 0")
    if not arguments.interpret and not torch.cuda.is_available():
        parser.error("no GPU found; on a CPU, --interpret proves the script itself")
    if not arguments.interpret and interpreting():
        parser.error("TRITON_INTERPRET is set; unset it, or say --interpret")
    if importlib.util.find_spec("triton") is None:
        parser.error("triton is not installed; 'pip install triton', or a CUDA build of torch, which brings it")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        parser.error(f"--out {arguments.out}: {fault.strerror}; choose another folder")
    return arguments


class Report:
    """What is found, as it is found: shown at once, written at the end."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device, seed: int):
        import triton

        self.started, self.lines = time.monotonic(), []
        self.found: dict[str, Any] = {
            "schema": 1,
            "command": " ".join(["python -m recguide.kernels.check", *sys.argv[1:]]),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, interpreted",
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
            "seed": seed,
            "complete": False,
        }
        self._out = arguments.out

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.started:4.0f} s] {line}", flush=True)
        self.lines.append(line)

    def collect(self, section: str, rows: Iterator[dict[str, Any]], show) -> None:
        """Keep each row as soon as it is there."""
        kept = self.found.setdefault(section, [])
        for row in rows:
            kept.append(row)
            self.say(show(row))

    def write(self) -> None:
        for name, text in (("check.json", json.dumps(self.found, indent=1)), ("check.txt", "\n".join(self.lines))):
            partial = self._out / f"{name}.partial"
            partial.write_text(text + "\n")
            partial.replace(self._out / name)
        print(f"written: {self._out / 'check.json'}, {self._out / 'check.txt'}")


def show_correct(row: dict[str, Any]) -> str:
    verdict = "ok" if row["ok"] else "WRONG"
    return f"{verdict:5} {row['kernel']:16} {row['dtype']:9} error {row['error']:.1e} (limit {row['limit']:.0e})"


def show_speed(row: dict[str, Any]) -> str:
    return (
        f"{row['point']:24} {row['triton_ms']:8.3f} ms, {row['speedup']:5.2f}x of {row['best_torch']}; "
        f"{row['gb_per_s']:6.0f} GB/s ({row['of_copy_bandwidth']:4.0%} of a copy's), "
        f"{row['tflops']:6.1f} TFLOP/s ({row['of_product_flops']:4.0%} of a product's)"
    )


def run(report: Report, device: torch.device, arguments: argparse.Namespace) -> None:
    """Correctness first: a wrong kernel's speed is of no interest, but is measured all the same."""
    from dataclasses import asdict, replace

    from . import check_correct, check_speed

    tiny = arguments.interpret
    sizes = check_correct.TINY if tiny else check_correct.FULL
    report.collect("correctness", check_correct.check_all(device, sizes, report.found["seed"]), show_correct)
    shapes = check_speed.TINY if tiny else check_speed.Shapes()
    shapes = replace(shapes, context=shapes.context if arguments.context is None else arguments.context)
    report.found["shapes"] = {name: str(value) for name, value in asdict(shapes).items()}
    watch = check_speed.Stopwatch(device, shapes.repeats)
    top = report.found["ceilings"] = check_speed.ceilings(device, shapes, watch)
    report.say(f"ceilings: copy {top['gb_per_s']:.0f} GB/s, product {top['tflops']:.1f} TFLOP/s")
    common = (device, shapes, watch, top)
    deadline = report.started + SECONDS
    report.collect("attention", check_speed.attention_points(*common, deadline), show_speed)
    report.collect("signals", check_speed.signals_points(*common), show_speed)
    report.collect("adapter", check_speed.adapter_points(*common), show_speed)
    report.collect("accept", check_speed.accept_points(*common), show_speed)
    report.found["complete"] = True


def main() -> int:
    arguments = parse()
    if arguments.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported
    device = torch.device("cpu" if arguments.interpret else "cuda")
    seed = int.from_bytes(os.urandom(4)) if arguments.seed is None else arguments.seed
    report = Report(arguments, device, seed)
    try:
        with torch.inference_mode():
            run(report, device, arguments)
    except KeyboardInterrupt:
        report.say("interrupted")
        return 130
    finally:
        report.write()
    rows = report.found["correctness"]
    wrong = sum(not row["ok"] for row in rows)
    print(f"{wrong} of {len(rows)} checks are wrong" if wrong else f"all {len(rows)} checks are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
