"""Writes a decision log from a thread of its own, so that a kill at any moment loses at most the last second.

Rows go into column buffers; the thread takes them every second, or as soon as there are many, and appends an Arrow IPC
batch to an unbuffered file. ``close`` turns the streams into Parquet. The engine's thread never waits for the disk.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from recguide.errors import RecGuideError
from recguide.provenance import write_json
from recguide.trace.schema import TABLES, VERSION

ROWS = 512
SECONDS = 1.0
MANIFEST, EVENTS, LOCK = "manifest.json", "events.jsonl", ".lock"


class TraceWriter:
    """One run folder, one writer. Use as a context manager, or call ``close``.

    A fault of the disk ends the writing, not the run: it is kept in ``error`` and raised by ``close``.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.error: str | None = None
        self._lock = _take(folder)
        try:
            write_json(folder / MANIFEST, {"schema": VERSION, **manifest})
            self._events = (folder / EVENTS).open("a", buffering=1)
            self._files = {name: (folder / f"{name}.arrows").open("wb", buffering=0) for name in TABLES}
            self._streams = {name: pa.ipc.new_stream(self._files[name], schema) for name, schema in TABLES.items()}
        except OSError as fault:
            self._lock.release()
            raise _unwritable(folder, fault) from None
        self._columns = {name: _empty(schema) for name, schema in TABLES.items()}
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._loop, name="recguide-trace", daemon=True)
        self._thread.start()
        self.event("start")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def now(self) -> float:
        """Seconds since the recording began."""
        return time.perf_counter() - self._started

    def add(self, table: str, **values: Any) -> None:
        """One row. Takes microseconds; does nothing once the disk has failed."""
        if self.error is not None:
            return
        with self._guard:
            columns = self._columns[table]
            for name, column in columns.items():
                column.append(values.get(name))
            many = len(column) >= ROWS
        if many:
            self._wake.set()

    def event(self, kind: str, **values: Any) -> None:
        """A knob change, an error, a start or an end, at once on disk."""
        try:
            self._events.write(json.dumps({"at_s": round(self.now, 6), "event": kind, **values}) + "\n")
        except (OSError, ValueError) as fault:  # ValueError: the file was closed when the disk failed
            self._fail(fault)

    def flush(self) -> None:
        """Put everything added so far on disk."""
        with self._guard:
            taken, self._columns = self._columns, {name: _empty(schema) for name, schema in TABLES.items()}
        for name, columns in taken.items():
            if next(iter(columns.values())):
                self._streams[name].write_batch(pa.RecordBatch.from_pydict(columns, TABLES[name]))

    def close(self) -> None:
        """End the log: flush, then Parquet instead of streams. RecGuideError when something was lost on the way."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join()
        self.event("end")
        try:
            for name in TABLES:
                self._streams[name].close()
                self._files[name].close()
            self._events.close()
            if self.error is None:
                from recguide.trace.reader import compact

                compact(self.folder)
        except OSError as fault:
            self._fail(fault)
        finally:
            self._lock.release()
        if self.error is not None:
            raise RecGuideError(f"{self.folder}: the log is not complete ({self.error}); see 'recguide trace check'")

    def _loop(self) -> None:
        while not self._closing and self.error is None:
            self._wake.wait(SECONDS)
            self._wake.clear()
            self._flush_safely()
        self._flush_safely()

    def _flush_safely(self) -> None:
        if self.error is None:
            try:
                self.flush()
            except (OSError, pa.ArrowException) as fault:
                self._fail(fault)

    def _fail(self, fault: BaseException) -> None:
        self.error = self.error or str(fault)


def _take(folder: Path) -> FileLock:
    """The only writer's lock on a new or empty folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name != LOCK for path in folder.iterdir()):
            raise RecGuideError(f"{folder}: is not empty; a run needs a folder of its own")
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise RecGuideError(f"{folder}: another process is writing there; give another folder") from None
    except OSError as fault:
        raise _unwritable(folder, fault) from None
    return lock


def _unwritable(folder: Path, fault: OSError) -> RecGuideError:
    return RecGuideError(f"{folder}: cannot write ({fault.strerror or fault}); choose another place or free space")


def _empty(schema: pa.Schema) -> dict[str, list[Any]]:
    return {name: [] for name in schema.names}
