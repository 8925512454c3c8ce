"""The engine on a thread: start, pause, one step, stop; streams equal ``generate``; faults reach everyone."""

import asyncio
import queue
import threading
import time
from itertools import islice

import pytest

from recguide.engine.runner import EngineThread
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from tests.helpers import assert_clean, make_engine, mixed_jobs, small_model

pytestmark = pytest.mark.timeout(300)

MODEL = small_model()
JOBS = mixed_jobs(8)
EXPECTED = [make_engine(MODEL, max_concurrency=1).generate([prompt], params)[0] for prompt, params in JOBS]
LONG = SamplingParams(max_new_tokens=200, temperature=0.8, seed=1, eos_ids=())
LONG_OUTPUT = make_engine(MODEL, max_concurrency=1).generate([[1, 2]], LONG)[0].output


@pytest.fixture
def runner():
    """A running thread over an engine with four slots; nothing of it may be left after ``stop``."""
    with EngineThread(make_engine(small_model(), "linear:4", max_concurrency=4)) as made:
        yield made
    assert_gone(made)


def assert_gone(runner):
    assert not runner.running
    assert "recguide-engine" not in {thread.name for thread in threading.enumerate()}
    assert_clean(runner.engine)


def wait_for(condition):
    """The limit only ends a test that hangs; no time is asserted."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def text(deltas):
    return [token for delta in deltas for token in delta.tokens]


def at_once(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


class Gate:
    """Holds the engine inside its next forward until ``open``."""

    def __init__(self, model, monkeypatch):
        self.entered, self._open = threading.Event(), threading.Event()
        self._plain = model.backbone.forward
        monkeypatch.setattr(model.backbone, "forward", self._forward)

    def _forward(self, *args, **rest):
        self.entered.set()
        assert self._open.wait(120)
        return self._plain(*args, **rest)

    def open(self):
        self._open.set()


# -- streams ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["ar", "linear:4", "ar-row:4", "overlap:4:1", "quadratic:4", "window:4:8"])
def test_stream_equals_generate(runner, spec):
    runner.engine.set_policy(spec)
    for (prompt, params), expected in zip(JOBS, EXPECTED, strict=True):
        deltas = list(runner.stream(prompt, params))
        assert text(deltas) == expected.output
        assert [d.finish_reason for d in deltas if d.finish_reason] == [expected.finish_reason]
        assert deltas[-1].finish_reason


def test_stream_async_equals_generate(runner):
    async def collect(prompt, params):
        return text([delta async for delta in runner.stream_async(prompt, params)])

    async def collect_all():
        return await asyncio.gather(*(collect(*job) for job in JOBS))

    assert asyncio.run(collect_all()) == [request.output for request in EXPECTED]


def test_two_streams_at_once_from_two_threads(runner):
    found, both = {}, []

    def collect(number):
        deltas = []
        for delta in runner.stream(*JOBS[number]):
            deltas.append(delta)
            both.append(len(runner.engine.running))
        found[number] = text(deltas)

    runner.pause()
    resume = threading.Thread(target=lambda: (wait_for(lambda: len(runner._sinks) == 2), runner.resume()))
    resume.start()
    at_once(lambda: collect(2), lambda: collect(5))
    resume.join()
    assert found == {2: EXPECTED[2].output, 5: EXPECTED[5].output}
    assert max(both) == 2  # they did share steps


def test_many_streams_over_few_slots(runner):
    found = {}

    def collect(number):
        found[number] = text(runner.stream(*JOBS[number]))

    at_once(*(lambda i=i: collect(i) for i in range(8)))
    assert [found[i] for i in range(8)] == [request.output for request in EXPECTED]


def test_a_sink_sees_the_deltas_and_the_request_keeps_them(runner):
    inbox = queue.SimpleQueue()
    request = runner.submit(*JOBS[1], inbox.put)
    wait_for(lambda: request.finished)
    deltas = [inbox.get(timeout=60)]
    while not deltas[-1].finish_reason:
        deltas.append(inbox.get(timeout=60))
    assert text(deltas) == request.output == EXPECTED[1].output
    wait_for(lambda: not runner._sinks)


def test_a_request_without_a_sink_ends_too(runner):
    request = runner.submit(*JOBS[1])
    wait_for(lambda: request.finished)
    assert request.output == EXPECTED[1].output


def test_a_stream_misses_nothing_when_its_prompt_enters_a_step_at_once(runner, monkeypatch):
    """The engine's thread is about to step when a prompt comes: it may be decoded before ``submit`` has returned."""
    engine, inbox = runner.engine, queue.SimpleQueue()
    about_to_step, go = threading.Event(), threading.Event()
    step, enqueue = engine.step, engine.enqueue

    def held_step():
        about_to_step.set()
        assert go.wait(120)
        return step()

    def slow_enqueue(request):
        enqueue(request)
        go.set()
        deadline = time.monotonic() + 5
        while not request.generated and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(0.05)

    monkeypatch.setattr(engine, "step", held_step)
    other = runner.submit([1, 2], LONG)
    about_to_step.wait(120)
    engine.set_policy("ar")
    monkeypatch.setattr(engine, "enqueue", slow_enqueue)
    request = runner.submit(*JOBS[1], inbox.put)
    wait_for(lambda: request.finished and other.finished)
    wait_for(lambda: engine.idle)
    runner.stop()
    assert text(inbox.get() for _ in range(inbox.qsize())) == request.output == EXPECTED[1].output


# -- leaving early ---------------------------------------------------------------------------------------------


def test_leaving_the_loop_aborts_the_request(runner):
    stream = runner.stream([1, 2], LONG)
    deltas = list(islice(stream, 3))
    neighbour = runner.submit(*JOBS[2])
    stream.close()
    request = deltas[0].request
    wait_for(lambda: request.finished and neighbour.finished)
    assert (request.finish_reason, request.slot) == ("abort", None)
    assert request.output == LONG_OUTPUT[: request.generated]
    assert neighbour.output == EXPECTED[2].output
    wait_for(lambda: not runner._sinks)


def test_leaving_the_async_loop_aborts_the_request(runner):
    async def first():
        stream = runner.stream_async([1, 2], LONG)
        delta = await anext(stream)
        await stream.aclose()
        return delta.request

    request = asyncio.run(first())
    wait_for(lambda: request.finished)
    assert request.finish_reason == "abort"
    assert text(runner.stream(*JOBS[2])) == EXPECTED[2].output


def test_an_event_loop_that_closed_does_not_end_the_engine(runner, monkeypatch):
    """The loop is gone when the step that it waited for comes back: others go on."""
    gate = Gate(runner.engine.model, monkeypatch)

    async def wait_for_the_first_token():
        async for _ in runner.stream_async([1, 2], LONG):
            pass

    async def give_up():
        task = asyncio.create_task(wait_for_the_first_token())
        await asyncio.to_thread(gate.entered.wait, 120)
        task.cancel()

    asyncio.run(give_up())
    gate.open()
    wait_for(lambda: runner.engine.idle or not runner.running)
    assert (runner.error, runner.running) == (None, True)
    assert text(runner.stream(*JOBS[2])) == EXPECTED[2].output


def test_abort_from_another_thread_ends_the_stream(runner):
    deltas, request = [], []

    def collect():
        for delta in runner.stream([1, 2], LONG):
            request.append(delta.request)
            deltas.append(delta)

    def abort():
        wait_for(lambda: request)
        runner.abort(request[0])

    at_once(collect, abort)
    assert deltas[-1].finish_reason in ("abort", "length")
    assert text(deltas) == request[0].output == LONG_OUTPUT[: len(request[0].output)]


# -- start, pause, stop ----------------------------------------------------------------------------------------


def test_start_and_stop_may_be_called_again():
    runner = EngineThread(make_engine(small_model(), "linear:4"))
    assert not runner.running
    for _ in range(2):
        runner.start()
        first = runner._thread
        runner.start()
        assert runner._thread is first
        assert text(runner.stream(*JOBS[3])) == EXPECTED[3].output
        runner.stop()
        runner.stop()
        assert_gone(runner)


def test_paused_makes_no_step_until_told(runner):
    runner.pause()
    request = runner.submit([1, 2], LONG)
    assert runner.paused
    for steps in (1, 2, 3):
        runner.step_once()
        wait_for(lambda steps=steps: runner.engine.stats.steps >= steps)
        time.sleep(0.02)
        assert runner.engine.stats.steps == steps
    runner.resume()
    wait_for(lambda: request.finished)
    assert not runner.paused
    assert request.output == LONG_OUTPUT


def test_single_steps_decode_everything(runner):
    runner.pause()
    deltas = []
    request = runner.submit(*JOBS[1], deltas.append)
    while not request.finished:
        before = runner.engine.stats.steps
        runner.step_once()
        wait_for(lambda before=before: runner.engine.stats.steps > before)
    wait_for(lambda: deltas and deltas[-1].finish_reason)
    assert text(deltas) == EXPECTED[1].output


def test_a_single_step_asked_for_while_running_is_not_saved_up(runner):
    runner.step_once()
    runner.pause()
    request = runner.submit([1, 2], LONG)
    time.sleep(0.2)
    assert (runner.engine.stats.steps, request.output) == (0, [])


def test_abort_while_paused_ends_the_stream_at_once(runner):
    runner.pause()
    inbox = queue.SimpleQueue()
    request = runner.submit([1, 2], LONG, inbox.put)
    runner.abort(request)
    assert request.finish_reason == "abort"
    assert inbox.get(timeout=5).finish_reason == "abort"
    assert runner.engine.stats.steps == 0


def test_stop_ends_every_open_stream_with_abort(runner):
    inbox = queue.SimpleQueue()
    requests = [runner.submit([i + 1], LONG, inbox.put) for i in range(6)]  # four run, two wait
    wait_for(lambda: runner.engine.stats.steps >= 2)
    runner.stop()
    ends = [d for d in (inbox.get() for _ in range(inbox.qsize())) if d.finish_reason]
    assert {d.request for d in ends} == set(requests)
    assert {r.finish_reason for r in requests} <= {"abort", "length"}
    assert "abort" in {r.finish_reason for r in requests}


def test_stop_while_paused(runner):
    runner.pause()
    request = runner.submit([1, 2], LONG)
    runner.stop()
    assert request.finish_reason == "abort"


def test_stop_ends_a_request_that_came_in_mid_step(runner, monkeypatch):
    """It is queued behind the step in progress when ``stop`` is called, and must not be forgotten."""
    gate, inbox = Gate(runner.engine.model, monkeypatch), queue.SimpleQueue()
    runner.submit([1, 2], LONG)
    assert gate.entered.wait(120)
    late = runner.submit([3, 4], LONG, inbox.put)
    stopper = threading.Thread(target=runner.stop)
    stopper.start()
    wait_for(lambda: runner._stopping)
    gate.open()
    stopper.join(120)
    assert late.finish_reason == "abort"
    assert inbox.get(timeout=5).finish_reason == "abort"


# -- faults ----------------------------------------------------------------------------------------------------


def test_submit_needs_a_running_thread():
    runner = EngineThread(make_engine(small_model()))
    with pytest.raises(RecGuideError, match=r"not running; call start\(\)"):
        runner.submit([1])
    with pytest.raises(RecGuideError, match="not running"):
        next(runner.stream([1]))
    with runner:
        pass
    with pytest.raises(RecGuideError, match="not running"):
        runner.submit([1])
    assert_gone(runner)


def test_a_prompt_that_comes_while_the_thread_stops_is_refused_or_ended(runner, monkeypatch):
    """Nobody would ever decode it, and its stream would wait for ever."""
    plain, inbox = runner.engine.prepare, queue.SimpleQueue()

    def prepare(*words):
        runner.stop()
        return plain(*words)

    monkeypatch.setattr(runner.engine, "prepare", prepare)
    try:
        request = runner.submit([1, 2], LONG, inbox.put)
    except RecGuideError as fault:
        assert "not running" in str(fault)
    else:
        assert request.finish_reason == "abort"
        assert inbox.get(timeout=5).finish_reason == "abort"


@pytest.mark.parametrize("prompt", [[], [99], [1] * 300])
def test_a_bad_prompt_is_refused_and_the_thread_goes_on(runner, prompt):
    with pytest.raises(RecGuideError):
        next(runner.stream(prompt))
    assert text(runner.stream(*JOBS[3])) == EXPECTED[3].output
    assert runner.error is None


def break_step(engine, monkeypatch):
    def broken(layout):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "_forward", broken)


def test_an_error_in_a_step_reaches_every_stream(runner, monkeypatch):
    caught, begun = [], []

    def collect(prompt):
        try:
            for _ in runner.stream(prompt, LONG):
                begun.append(1)
        except RuntimeError as fault:
            caught.append(str(fault))

    def spoil():
        wait_for(lambda: begun and len(runner._sinks) == 2)
        break_step(runner.engine, monkeypatch)

    at_once(lambda: collect([1, 2]), lambda: collect([3]), spoil)
    assert caught == ["out of memory"] * 2
    assert str(runner.error) == "out of memory"
    wait_for(lambda: not runner.running)
    with pytest.raises(RecGuideError, match="not running"):
        runner.submit([1])


def test_an_error_reaches_the_others_when_one_reader_is_gone(runner, monkeypatch):
    def gone(item):
        raise RuntimeError("Event loop is closed")

    inbox = queue.SimpleQueue()
    break_step(runner.engine, monkeypatch)
    runner.pause()
    runner.submit([1, 2], LONG, gone)
    runner.submit([3], LONG, inbox.put)
    runner.resume()
    assert str(inbox.get(timeout=30)) == "out of memory"
    assert str(runner.error) == "out of memory"


def test_an_error_reaches_an_async_stream(runner, monkeypatch):
    break_step(runner.engine, monkeypatch)

    async def collect():
        return [delta async for delta in runner.stream_async([1, 2], LONG)]

    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(collect())


def test_after_an_error_the_thread_can_start_again(runner, monkeypatch):
    break_step(runner.engine, monkeypatch)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(runner.stream([1, 2], LONG))
    monkeypatch.undo()
    wait_for(lambda: not runner.running)
    runner.start()
    assert runner.error is None
    assert text(runner.stream(*JOBS[4])) == EXPECTED[4].output


# -- knobs -----------------------------------------------------------------------------------------------------


def test_turning_knobs_while_running_keeps_every_text(runner):
    specs = ["ar", "linear:4", "overlap:4:1", "ar-row:8", "quadratic:4", "window:4:8"]
    requests = [runner.submit(*job) for job in JOBS * 3]
    turns = 0
    while not all(request.finished for request in requests):
        runner.engine.set_policy(specs[turns % len(specs)])
        runner.engine.set_concurrency(1 + turns % 4)
        turns += 1
        time.sleep(0.001)
    assert turns > 1
    assert [request.output for request in requests] == [request.output for request in EXPECTED] * 3


def test_a_policy_set_between_two_pieces_of_logits_waits_for_the_next_step(monkeypatch):
    """``overlap`` reads signals, ``linear`` does not: a switch in mid-step must not leave half of them."""
    model = small_model()
    engine = make_engine(model, "linear:8", max_concurrency=1)
    monkeypatch.setattr("recguide.engine.engine.LOGIT_ROWS", 3)
    plain, calls = model.backbone.logits, []

    def logits(hidden):
        calls.append(1)
        engine.set_policy(("linear:8", "overlap:8:1")[len(calls) // 2 % 2])
        return plain(hidden)

    monkeypatch.setattr(model.backbone, "logits", logits)
    assert engine.generate([[1, 2]], LONG)[0].output == LONG_OUTPUT
    assert_clean(engine)
