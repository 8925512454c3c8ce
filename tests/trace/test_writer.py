"""The writer: a kill leaves everything flushed readable, the engine never waits, faults are told."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from filelock import FileLock

from recguide.errors import RecGuideError
from recguide.trace.reader import read_trace, read_traces
from recguide.trace.schema import TABLES
from recguide.trace.writer import ROWS, TraceWriter

MANIFEST = {"model": "m", "model_fingerprint": "f", "policy": "ar"}


def add(writer, count, first=0):
    for i in range(first, first + count):
        writer.add("steps", step=i, at_s=0.0, policy="ar", requests=1, rows=1, seconds=0.1)


def steps(folder):
    return read_trace(folder).tables["steps"]["step"].to_pylist()


class Disk:
    """A stream whose batches go wherever a test says."""

    def __init__(self, write_batch):
        self.write_batch = write_batch

    def close(self):
        pass


def test_rows_read_back_in_order_with_every_column(tmp_path):
    with TraceWriter(tmp_path / "run", MANIFEST) as writer:
        add(writer, 3 * ROWS + 5)
        writer.add("plans", step=1, request=2, branch_parents=[1, 2], branch_tokens=[-1, 7], branch_masks=[3, 4])
    trace = read_trace(tmp_path / "run")
    assert trace.tables["steps"]["step"].to_pylist() == list(range(3 * ROWS + 5))
    assert trace.tables["plans"].to_pylist()[0]["branch_tokens"] == [-1, 7]
    assert {name: table.schema for name, table in trace.tables.items()} == TABLES
    assert sorted(p.name for p in (tmp_path / "run").glob("*.parquet")) == sorted(f"{n}.parquet" for n in TABLES)
    assert not list((tmp_path / "run").glob("*.arrows"))


KILLED = """
import sys, time
from pathlib import Path
from recguide.trace.writer import TraceWriter
writer = TraceWriter(Path(sys.argv[1]), {"model": "m", "model_fingerprint": "f", "policy": "ar"})
i = 0
while True:
    for _ in range(5):
        writer.add("steps", step=i, at_s=0.0, policy="ar", requests=1, rows=1, seconds=0.1)
        i += 1
    print(i, time.monotonic(), flush=True)
    time.sleep(0.02)
"""


@pytest.mark.parametrize("after", [1.4, 2.2])
def test_a_kill_loses_at_most_the_last_second(tmp_path, after):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    first = child.stdout.readline()
    time.sleep(after)
    os.kill(child.pid, signal.SIGKILL)
    lines = [first, *child.stdout.read().splitlines()]
    child.wait()
    written = [(int(count), float(at)) for count, at in (line.split() for line in lines if len(line.split()) == 2)]
    last = written[-1][1]
    long_ago = max((count for count, at in written if at < last - 1.3), default=0)  # a second, and some for the host
    found = steps(tmp_path / "run")
    assert found == list(range(len(found)))
    assert long_ago <= len(found) <= written[-1][0] + 5
    assert "steps" in read_trace(tmp_path / "run").cut


def test_any_cut_of_a_stream_leaves_the_batches_before_it(tmp_path):
    writer = TraceWriter(tmp_path / "run", MANIFEST)
    path, sizes = tmp_path / "run" / "steps.arrows", []
    for i in range(4):
        add(writer, 100, 100 * i)
        writer.flush()
        sizes.append(path.stat().st_size)
    whole = path.read_bytes()
    for size in sorted({*range(0, len(whole), 997), *sizes, *(s - 1 for s in sizes)}):
        path.write_bytes(whole[:size])
        assert steps(tmp_path / "run") == list(range(100 * sum(size >= s for s in sizes)))
    path.write_bytes(whole)
    writer.close()


def test_adding_does_not_wait_for_the_disk(tmp_path):
    writer = TraceWriter(tmp_path / "run", MANIFEST)
    plain = writer._streams["steps"]
    writer._streams["steps"] = Disk(lambda batch: (time.sleep(0.5), plain.write_batch(batch)))
    longest = 0.0
    for i in range(4 * ROWS):
        before = time.perf_counter()
        writer.add("steps", step=i)
        longest = max(longest, time.perf_counter() - before)
    assert longest < 0.25
    writer.flush()
    writer._streams["steps"] = plain
    writer.close()
    assert steps(tmp_path / "run") == list(range(4 * ROWS))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path):
    writer = TraceWriter(tmp_path / "run", MANIFEST)
    add(writer, 10)
    writer.flush()
    with open("/dev/full", "wb", buffering=0) as full:
        writer._streams["steps"] = Disk(lambda batch: full.write(batch.serialize().to_pybytes()))
        add(writer, 2 * ROWS, 10)
        deadline = time.monotonic() + 5
        while writer.error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        add(writer, 10)
        with pytest.raises(RecGuideError, match=r"not complete .*No space left"):
            writer.close()
    assert steps(tmp_path / "run") == list(range(10))


def test_a_second_writer_is_refused(tmp_path):
    with TraceWriter(tmp_path / "run", MANIFEST), pytest.raises(RecGuideError, match="is not empty"):
        TraceWriter(tmp_path / "run", MANIFEST)
    (tmp_path / "other").mkdir()
    with FileLock(tmp_path / "other" / ".lock"), pytest.raises(RecGuideError, match="another process is writing"):
        TraceWriter(tmp_path / "other", MANIFEST)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecGuideError, match="cannot write"):
        TraceWriter(tmp_path / "file" / "run", MANIFEST)


def test_logs_that_are_none_of_ours_are_told(tmp_path):
    with pytest.raises(RecGuideError, match="holds no decision log"):
        read_trace(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(RecGuideError, match="schema 99, this version reads"):
        read_trace(tmp_path)


def test_logs_of_different_models_and_empty_logs_are_refused(tmp_path):
    for name, fingerprint in (("a", "f"), ("b", "g")):
        with TraceWriter(tmp_path / name, MANIFEST | {"model_fingerprint": fingerprint}):
            pass
    with pytest.raises(RecGuideError, match="different models: f, g"):
        read_traces([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(RecGuideError, match="no plan was logged"):
        read_traces([tmp_path / "a"])


def test_a_damaged_table_is_told_with_its_name(tmp_path):
    with TraceWriter(tmp_path / "run", MANIFEST) as writer:
        add(writer, 10)
    (tmp_path / "run" / "steps.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(RecGuideError, match="table steps is damaged"):
        read_trace(tmp_path / "run")
