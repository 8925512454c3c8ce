"""An engine on a thread of its own, for notebooks and servers: start, pause, step once, stop, and streams of tokens."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from recguide.engine.engine import Engine, Prompt
from recguide.engine.request import Delta, Request
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError

Sink = Callable[[Delta | BaseException], None]


class EngineThread:
    """Drives an engine while it has work. Use as a context manager, or call ``start`` and ``stop``.

    Every method may be called from any thread. An error in a step stops the thread, is kept in ``error``, and is
    raised in every open stream.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.error: BaseException | None = None
        self._sinks: dict[int, Sink] = {}
        self._wake = threading.Condition()
        self._paused = self._stopping = False
        self._single_steps = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EngineThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def paused(self) -> bool:
        return self._paused

    def start(self) -> None:
        """Start the thread; does nothing when it runs already."""
        if self.running:
            return
        self._stopping, self.error = False, None
        self._thread = threading.Thread(target=self._loop, name="recguide-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step in progress and abort every request."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._deliver(self.engine.flush())
        for request in [*self.engine.running, *self.engine.waiting]:
            self.engine.abort(request)
        self._deliver(self.engine.flush())

    def pause(self) -> None:
        """Make no further step until ``resume`` or ``step_once``."""
        with self._wake:
            self._paused = True

    def resume(self) -> None:
        with self._wake:
            self._paused, self._single_steps = False, 0
            self._wake.notify_all()

    def step_once(self) -> None:
        """While paused: make one step. Does nothing while running."""
        with self._wake:
            self._single_steps += self._paused
            self._wake.notify_all()

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, sink: Sink | None = None) -> Request:
        """Queue a prompt. ``sink`` gets its deltas on the engine's thread; it must not block."""
        request = self.engine.prepare(prompt, params)
        with self._wake:  # stop() takes it too: a request is either ended by stop or refused here
            if not self.running or self._stopping or self.error is not None:
                raise RecGuideError("the engine thread is not running; call start() first")
            if sink is not None:
                self._sinks[request.id] = sink  # before the engine sees the request, or a first delta could be missed
            self.engine.enqueue(request)
            self._wake.notify_all()
        return request

    def abort(self, request: Request) -> None:
        self.engine.abort(request)
        with self._wake:
            self._wake.notify_all()

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Deltas of one request as they come. Leaving the loop early aborts the request."""
        inbox: queue.SimpleQueue[Delta | BaseException] = queue.SimpleQueue()
        request = self.submit(prompt, params, inbox.put)
        try:
            while True:
                delta = _raised(inbox.get())
                yield delta
                if delta.finish_reason:
                    return
        finally:
            self.abort(request)

    async def stream_async(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """``stream`` for asyncio: the event loop is never blocked."""
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue()
        request = self.submit(prompt, params, lambda item: loop.call_soon_threadsafe(inbox.put_nowait, item))
        try:
            while True:
                delta = _raised(await inbox.get())
                yield delta
                if delta.finish_reason:
                    return
        finally:
            self.abort(request)

    def _loop(self) -> None:
        try:
            while not self._stopping:
                self._deliver(self.engine.step() if self._wait_for_step() else self.engine.flush())
        except BaseException as fault:
            self.error = fault
            self._fail(fault)

    def _wait_for_step(self) -> bool:
        """Sleep until there is something to do; True when it is a step."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._step_is_due() or self.engine.has_news)
            due = self._step_is_due() and not self._stopping
            if due and self._paused:
                self._single_steps -= 1
            return due

    def _step_is_due(self) -> bool:
        return not self.engine.idle and (not self._paused or self._single_steps > 0)

    def _deliver(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            sink = self._sinks.get(delta.request.id)
            if delta.finish_reason:
                self._sinks.pop(delta.request.id, None)
            if sink is not None:
                self._send(sink, delta)

    def _send(self, sink: Sink, delta: Delta) -> None:
        """A reader that is gone (a closed event loop, say) ends its own request and nothing else."""
        try:
            sink(delta)
        except Exception:
            self._sinks.pop(delta.request.id, None)
            self.engine.abort(delta.request)

    def _fail(self, fault: BaseException) -> None:
        with self._wake:
            sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            with contextlib.suppress(Exception):  # a reader that is gone must not keep the news from the others
                sink(fault)


def _raised(item: Delta | BaseException) -> Delta:
    if isinstance(item, BaseException):
        raise item
    return item
