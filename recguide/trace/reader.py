"""Reads a decision log, whole or cut short by a kill, and says what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recguide.errors import RecGuideError
from recguide.models.checkpoint import read_json
from recguide.trace.schema import TABLES, VERSION
from recguide.trace.writer import EVENTS, MANIFEST


@dataclass(frozen=True)
class Trace:
    """A run: its manifest, its events, and one Arrow table for each of TABLES. ``cut`` names tables without an end."""

    folder: Path
    manifest: dict[str, Any]
    events: list[dict[str, Any]]
    tables: dict[str, pa.Table]
    cut: tuple[str, ...]


def read_trace(folder: Path) -> Trace:
    """Everything readable of a run folder. RecGuideError when it holds no log, or one of another schema version."""
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else None
    if manifest is None:
        raise RecGuideError(f"{folder}: holds no decision log; 'recguide trace record' makes one")
    if manifest.get("schema") != VERSION:
        raise RecGuideError(f"{folder}: log of schema {manifest.get('schema')}, this version reads {VERSION}")
    tables, cut = {}, []
    for name, schema in TABLES.items():
        tables[name], whole = _read_table(folder, name, schema)
        if not whole:
            cut.append(name)
    return Trace(folder, manifest, _events(folder / EVENTS), tables, tuple(cut))


def read_traces(folders: Sequence[Path]) -> list[Trace]:
    """Several runs of one model. RecGuideError when none has a row, or two are of different models."""
    traces = [read_trace(folder) for folder in folders]
    models = {trace.manifest["model_fingerprint"] for trace in traces}
    if len(models) > 1:
        raise RecGuideError(f"logs of different models: {', '.join(sorted(models))}; train on one model's at a time")
    if not any(len(trace.tables["plans"]) for trace in traces):
        raise RecGuideError(f"{', '.join(map(str, folders))}: no plan was logged; record a longer run")
    return traces


def with_verifications(plans: pa.Table) -> Iterator[tuple[dict[str, Any], list[tuple[int, int]]]]:
    """Plans in the order of their steps, each with the verifications of its request before it: (drafts given, drafts
    accepted). The list grows as the walk goes on; copy what is to stay."""
    past: dict[int, list[tuple[int, int]]] = {}
    for row in plans.sort_by([("step", "ascending"), ("request", "ascending")]).to_pylist():
        mine = past.setdefault(row["request"], [])
        yield row, mine
        if row["verify"] > 0:
            mine.append((row["verify"], row["accepted"]))


def _read_table(folder: Path, name: str, schema: pa.Schema) -> tuple[pa.Table, bool]:
    """A table and whether it is whole."""
    parquet, stream = folder / f"{name}.parquet", folder / f"{name}.arrows"
    try:
        if parquet.exists():
            return _checked(pq.read_table(parquet), schema, parquet), True
        if stream.exists():
            batches, whole = _batches(stream)
            return _checked(pa.Table.from_batches(batches, schema), schema, stream), whole
    except (pa.ArrowException, OSError) as fault:
        raise RecGuideError(f"{folder}: table {name} is damaged ({fault})") from None
    return schema.empty_table(), False


def _checked(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    if not table.schema.equals(schema):
        raise RecGuideError(f"{path}: columns are not those of this version; record the run again")
    return table


def _batches(path: Path) -> tuple[list[pa.RecordBatch], bool]:
    """All whole batches of a stream, and whether its end was written."""
    batches: list[pa.RecordBatch] = []
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            batches += stream
        whole = path.read_bytes().endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    except (pa.ArrowInvalid, OSError):  # what a kill left of the last batch
        return batches, False
    return batches, whole


def _events(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: a kill may cut the last one."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def compact(folder: Path) -> None:
    """Streams become Parquet files; a stream is removed once its file is there."""
    for name, schema in TABLES.items():
        stream = folder / f"{name}.arrows"
        if stream.exists():
            table, _ = _read_table(folder, name, schema)
            partial = folder / f"{name}.partial"
            pq.write_table(table, partial, compression="zstd")
            partial.replace(folder / f"{name}.parquet")
            stream.unlink()
