"""llama.cpp beside us: the accounting against a scripted server, and the real one where it can be had.

The real one needs ``pip install "recguide[bench]"`` and the embedded model's GGUF file (or ``RECGUIDE_GGUF``).
"""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recguide.bench.llamacpp import Answer, LlamaServer, ask, measure, summary
from recguide.bench.prompts import Prompt
from recguide.errors import RecGuideError
from recguide.models.embedded import gguf_path

PROMPTS = [
    Prompt("chat", messages=({"role": "user", "content": "Name a river."},)),
    Prompt("raw", text="The longest river in Africa is"),
]


class Scripted(BaseHTTPRequestHandler):
    """Answers as llama.cpp does, with three tokens in 100 ms, and keeps what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        script = self.server.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with script.lock:
            script.received.append((self.path, body))
            script.running += 1
            script.most_running = max(script.most_running, script.running)
        time.sleep(0.02)
        with script.lock:
            script.running -= 1
        content = json.dumps(script.reply).encode()
        self.send_response(script.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Script:
    """Stands in for LlamaServer: the same four things that `measure` uses of it."""

    def __init__(self, port):
        self.port, self.concurrency = port, 4
        self.lock, self.received, self.running, self.most_running = threading.Lock(), [], 0, 0
        self.status = 200
        self.reply = {
            "choices": [{"text": "x y z", "message": {"content": "x y z"}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": 3, "prompt_tokens": 7},
            "timings": {"cache_n": 0, "prompt_ms": 50.0, "predicted_ms": 100.0},
        }

    def connect(self):
        return HTTPConnection("127.0.0.1", self.port, timeout=10)

    def cpu_seconds(self):
        return 0.0


@pytest.fixture
def script():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.script = Script(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.script
    server.shutdown()
    server.server_close()


def test_chat_and_raw_text_are_sent_greedy_and_uncached(script):
    for prompt in PROMPTS:
        ask(script.connect(), prompt, 5)
    (chat_path, chat), (raw_path, raw) = script.received
    assert (chat_path, raw_path) == ("/v1/chat/completions", "/v1/completions")
    assert chat["messages"] == [{"role": "user", "content": "Name a river."}]
    assert raw["prompt"] == "The longest river in Africa is"
    assert all(body["temperature"] == 0 and body["cache_prompt"] is False for body in (chat, raw))
    assert all(body["max_tokens"] == 5 for body in (chat, raw))


def test_closed_loop_keeps_every_client_busy_and_counts_all(script):
    row = measure(script, PROMPTS * 6, 3, 5)
    assert script.most_running == 3
    assert (row["requests"], row["tokens"], row["prompt_tokens"], row["stopped"]) == (12, 36, 84, 12)
    assert row["aggregate_tok_s"] == pytest.approx(36 / row["wall_s"])
    assert row["per_request_tok_s"] == pytest.approx(2 / 0.1)


def test_refusal_names_the_prompt_and_ends_the_run(script):
    script.status, script.reply = 400, {"error": {"message": "the request exceeds the context size"}}
    with pytest.raises(RecGuideError, match=r"prompt chat: llama\.cpp answered 400: the request exceeds the context"):
        measure(script, PROMPTS[:1] * 50, 2, 5)
    assert len(script.received) < 50


def test_more_clients_than_slots_are_refused(script):
    with pytest.raises(RecGuideError, match="concurrency must be 1 to 4"):
        measure(script, PROMPTS, 5, 5)


def test_one_token_answers_have_no_rate():
    one = Answer(
        id="1", text="x", tokens=1, prompt_tokens=7, cached_tokens=0, prefill_s=0.1, decode_s=0.0, stopped=True
    )
    assert summary([one], 0.5)["per_request_tok_s"] is None


def test_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecGuideError, match=r'pip install "recguide\[bench\]"'):
        LlamaServer(__file__, 1)


def test_missing_model_says_how_to_fetch_it():
    with pytest.raises(RecGuideError, match=r"none\.gguf: no such GGUF file; fetch"):
        LlamaServer("none.gguf", 1)


# --- the real server ---


@pytest.fixture(scope="module")
def gguf():
    pytest.importorskip(
        "xllamacpp", reason='llama.cpp is not installed: pip install "recguide[bench]"', exc_type=ImportError
    )
    path = Path(os.environ.get("RECGUIDE_GGUF") or gguf_path())
    if not path.is_file():
        pytest.skip(f"no GGUF file at {path}: run 'recguide models fetch' or set RECGUIDE_GGUF")
    return path


@pytest.mark.slow
def test_real_server_answers_and_counts(gguf):
    with LlamaServer(gguf, 2, ctx=256) as server:
        first = ask(server.connect(), PROMPTS[0], 8)
        again = ask(server.connect(), PROMPTS[0], 8)
        row = measure(server, PROMPTS, 2, 8)
    assert (first.text, first.tokens) == (again.text, again.tokens)
    assert 0 < first.tokens <= 8 and first.prompt_tokens > 5
    assert row["requests"] == 2 and 2 <= row["tokens"] <= 16
    assert again.cached_tokens == row["cached_prompt_tokens"] == 0
    assert row["server_cores"] > 0


@pytest.mark.slow
def test_real_server_refuses_a_prompt_beyond_its_context(gguf):
    with (
        LlamaServer(gguf, 1, ctx=256) as server,
        pytest.raises(RecGuideError, match=r"prompt long: llama\.cpp answered 400"),
    ):
        measure(server, [Prompt("long", text="river " * 600)], 1, 4)


@pytest.mark.slow
def test_file_that_is_no_model_is_reported(gguf, tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"nothing")
    with pytest.raises(RecGuideError, match="server stopped"):
        LlamaServer(tmp_path / "no.gguf", 1).start()


# A process that starts a server, prints the address and is then killed without a chance to clean up.
DOOMED = """
import sys, time
from recguide.bench.llamacpp import LlamaServer
print(LlamaServer(sys.argv[1], 1, ctx=256).start(), flush=True)
time.sleep(600)
"""


def answers(url):
    try:
        HTTPConnection(url.strip().removeprefix("http://"), timeout=5).request("GET", "/health")
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_server_does_not_outlive_a_killed_parent(gguf):
    parent = subprocess.Popen([sys.executable, "-c", DOOMED, str(gguf)], stdout=subprocess.PIPE, text=True)
    url = parent.stdout.readline()
    assert answers(url)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 30
    while answers(url) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not answers(url)
