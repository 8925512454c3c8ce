"""The session's decision log, in parts: one may be saved or trained on while the next is being written."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from recguide.lab.fanout import Fanout

from recguide.engine.engine import Engine
from recguide.errors import RecGuideError
from recguide.trace.recorder import Recorder


class Recording:
    """Writes ``folder/log-NNN``, one after the other. Thread-safe."""

    def __init__(self, engine: Engine, fanout: Fanout, folder: Path):
        self._engine, self._fanout, self._folder = engine, fanout, folder
        self._recorder: Recorder | None = None
        self._guard = threading.RLock()
        self.parts: list[Path] = []

    @property
    def on(self) -> bool:
        return self._recorder is not None

    @property
    def error(self) -> str | None:
        """Why the log is not complete, if the disk failed."""
        recorder = self._recorder
        return recorder.writer.error if recorder is not None else None

    def start(self) -> None:
        """Begin a part; does nothing while one is being written."""
        with self._guard:
            if not self.on:
                self._recorder = self._begin()
                self._fanout.add(self._recorder)

    def stop(self) -> None:
        """End the part and keep it; RecGuideError when the disk lost something of it."""
        with self._guard:
            recorder, self._recorder = self._recorder, None
            if recorder is not None:
                self._fanout.remove(recorder)
                self._end(recorder)

    def cut(self) -> list[Path]:
        """All parts so far, complete; goes on in a new one without missing a step."""
        with self._guard:
            if (before := self._recorder) is not None:
                self._recorder = self._begin()
                self._fanout.replace(before, self._recorder)
                self._end(before)
            return list(self.parts)

    def _begin(self) -> Recorder:
        observer = self._engine.observer
        try:
            return Recorder(self._engine, self._folder / f"log-{self._next():03d}")
        finally:
            self._engine.observer = observer  # a recorder takes the engine's only place; it gets one of the fanout's

    def _end(self, recorder: Recorder) -> None:
        """Its writer alone is closed: the engine's place for an observer is not the recorder's to clear."""
        self.parts.append(recorder.writer.folder)
        recorder.writer.close()

    def _next(self) -> int:
        taken = [int(p.name.removeprefix("log-")) for p in self._folder.glob("log-[0-9]*")]
        return 1 + max(taken, default=0)

    def event(self, kind: str, **values: object) -> None:
        """Note a change of a knob in the log, if one is being written."""
        with self._guard:
            if self._recorder is not None:
                self._recorder.writer.event(kind, **values)

    def save(self, target: Path) -> Path:
        """Copy all parts so far into ``target``."""
        parts = self.cut()
        if not parts:
            raise RecGuideError("nothing was recorded yet; switch recording on and let it run")
        try:
            for part in parts:
                shutil.copytree(part, target / part.name)
        except OSError as fault:
            raise RecGuideError(f"{target}: cannot write ({fault}); choose another place or free space") from None
        return target
