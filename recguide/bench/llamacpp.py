"""llama.cpp's own server under a closed loop of requests: the other engine that ours is compared with.

The server comes from the PyPI package ``xllamacpp`` and runs in a process of its own, so that its threads do not
spin beside ours, and so that it cannot outlive us. Prompts are sent as chats (raw texts as plain completions), answers
are greedy, no prompt is reused from a cache, and tokens are counted by the server. Knows nothing of our engine.

``recguide.bench.versus`` measures it in turn with our engine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from recguide.bench.prompts import Prompt
from recguide.errors import RecGuideError

OTHER = "llama.cpp"
CHILD = "from recguide.bench.llamacpp import serve; serve()"
TIMEOUT_S = 600
WARM_UP = Prompt("warm-up", text="Once upon a time")


def server_params(gguf: str, concurrency: int, threads: int, ctx: int) -> Any:
    """The settings that were fastest here; flash attention, batch sizes and continuous batching stay at their defaults.

    The caches switched off keep prompts of earlier requests, which would hide part of the prefill.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_parallel = concurrency
    params.n_ctx = ctx * concurrency  # shared out evenly over the slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_prompt = params.cache_idle_slots = False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    params.slot_prompt_similarity = 0.0
    params.verbosity = 1  # errors only
    return params


def serve() -> None:
    """The child's whole life: read settings, serve, answer each line with the CPU seconds used, end with the input."""
    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever llama.cpp prints belongs into the log
    settings = json.loads(sys.stdin.readline())
    import xllamacpp

    server = xllamacpp.Server(server_params(**settings))
    about = {"xllamacpp": xllamacpp.__version__, "system": xllamacpp.get_system_info().strip(" |\n")}
    print(json.dumps({"url": server.listening_address, "about": about}), file=reply)
    for _ in sys.stdin:
        print(time.process_time(), file=reply)
    os._exit(0)  # without waiting for requests that nobody will read


class LlamaServer:
    """One server with a slot for each of ``concurrency`` requests and ``ctx`` tokens of context in each slot."""

    def __init__(self, gguf: Path | str, concurrency: int, threads: int = 2, ctx: int = 2048):
        _check(gguf, concurrency=concurrency, threads=threads, ctx=ctx)
        self.concurrency = concurrency
        self.settings = {"gguf": str(gguf), "concurrency": concurrency, "threads": threads, "ctx": ctx}
        self.url = ""
        self.about: dict[str, str] = {}  # versions and the CPU features that llama.cpp was built for
        self._child: subprocess.Popen | None = None

    def start(self) -> str:
        """Load the model, answer one request to warm up, and return the address, on a free port of this machine."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        # In a session of its own: an interrupt from the keyboard is for us, and we stop it.
        self._child = subprocess.Popen([sys.executable, "-c", CHILD], **pipe, text=True, start_new_session=True)
        try:
            ready = json.loads(self._ask_child(json.dumps(self.settings)))
            self.url, self.about = ready["url"], ready["about"]
            ask(self.connect(), WARM_UP, 2)
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.communicate()
        self._child = None
        self._log.close()

    def __enter__(self) -> LlamaServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self.url.removeprefix("http://"), timeout=TIMEOUT_S)

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far: near wall time x threads while it had the cores for itself."""
        return float(self._ask_child(""))

    def _ask_child(self, line: str) -> str:
        try:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RecGuideError(f"llama.cpp's server stopped; the last line of its log: {self._last_words()}")
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "(empty)")


def _check(gguf: Path | str, **counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise RecGuideError(f"{name} must be 1 or more, got {value}")
    if not Path(gguf).is_file():
        raise RecGuideError(f"{gguf}: no such GGUF file; fetch the default with 'recguide models fetch' or give --gguf")
    if importlib.util.find_spec("xllamacpp") is None:
        raise RecGuideError('llama.cpp is not installed: pip install "recguide[bench]"')


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server says it did for one request; ``tokens`` includes the end token."""

    id: str
    text: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    prefill_s: float
    decode_s: float  # from the first token to the last
    stopped: bool  # by the model, not by the budget

    @property
    def tok_s(self) -> float:
        """1 / TPOT."""
        return (self.tokens - 1) / self.decode_s


def ask(connection: HTTPConnection, prompt: Prompt, max_new_tokens: int) -> Answer:
    """Send one prompt and wait for all of its answer."""
    body = {"max_tokens": max_new_tokens, "temperature": 0, "cache_prompt": False}
    if prompt.text is None:
        path, body["messages"] = "/v1/chat/completions", prompt.as_messages()
    else:
        path, body["prompt"] = "/v1/completions", prompt.text
    reply = _post(connection, path, body, prompt.id)
    choice, timings = reply["choices"][0], reply["timings"]
    return Answer(
        id=prompt.id,
        text=choice["text"] if prompt.text is not None else choice["message"]["content"],
        tokens=reply["usage"]["completion_tokens"],
        prompt_tokens=reply["usage"]["prompt_tokens"],
        cached_tokens=timings["cache_n"],
        prefill_s=timings["prompt_ms"] / 1000,
        decode_s=timings["predicted_ms"] / 1000,
        stopped=choice["finish_reason"] == "stop",
    )


def _post(connection: HTTPConnection, path: str, body: dict, name: str) -> dict:
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    except (OSError, HTTPException) as error:
        raise RecGuideError(f"prompt {name}: llama.cpp's server gave no answer ({error!r})") from None
    if response.status != 200:
        raise RecGuideError(f"prompt {name}: llama.cpp answered {response.status}: {_complaint(content)}")
    return json.loads(content)


def _complaint(content: bytes) -> str:
    try:
        return json.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]


def measure(server: LlamaServer, prompts: Sequence[Prompt], concurrency: int, max_new_tokens: int) -> dict:
    """Closed loop: ``concurrency`` clients, each sending its next prompt when its last answer is complete."""
    if not 1 <= concurrency <= server.concurrency:
        raise RecGuideError(f"concurrency must be 1 to {server.concurrency} (the server's slots), got {concurrency}")
    cpu, start = server.cpu_seconds(), time.perf_counter()
    answers = run_clients(server, prompts, concurrency, max_new_tokens)
    wall = time.perf_counter() - start
    return {
        "concurrency": concurrency,
        **summary(answers, wall),
        "server_cores": (server.cpu_seconds() - cpu) / wall,  # far below `threads`: something else took the cores
    }


def run_clients(server: LlamaServer, prompts: Sequence[Prompt], concurrency: int, max_new_tokens: int) -> list[Answer]:
    """All answers, in the order of their completion; the first fault ends the run."""
    waiting = deque(prompts)
    answers: list[Answer] = []
    with ThreadPoolExecutor(concurrency) as pool:
        try:
            client = partial(_client, server, waiting, answers, max_new_tokens)
            for future in [pool.submit(client) for _ in range(concurrency)]:
                future.result()
        finally:
            waiting.clear()  # or an interrupt would wait for every prompt
    return answers


def _client(server: LlamaServer, waiting: deque[Prompt], answers: list[Answer], max_new_tokens: int) -> None:
    connection = server.connect()
    try:
        while waiting:
            try:
                prompt = waiting.popleft()
            except IndexError:  # another client took the last one
                return
            answers.append(ask(connection, prompt, max_new_tokens))
    finally:
        connection.close()


def summary(answers: Sequence[Answer], wall: float) -> dict:
    """Medians over requests; aggregate throughput counts prefill time, per-request throughput (1/TPOT) does not."""
    tokens = sum(answer.tokens for answer in answers)
    rates = [answer.tok_s for answer in answers if answer.tokens > 1]
    return {
        "aggregate_tok_s": tokens / wall,
        "per_request_tok_s": statistics.median(rates) if rates else None,
        "prefill_s": statistics.median(answer.prefill_s for answer in answers),
        "wall_s": wall,
        "requests": len(answers),
        "tokens": tokens,
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "cached_prompt_tokens": sum(answer.cached_tokens for answer in answers),
        "stopped": sum(answer.stopped for answer in answers),
    }
