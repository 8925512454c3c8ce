"""``recguide lab`` before any server: the working copy, and what stands in its way."""

import socket

import pytest
from recguide.lab import serve
from recguide.lab.serve import copy_notebooks

from recguide.errors import RecGuideError


def test_notebooks_are_copied_once_and_changes_stay(tmp_path):
    assert copy_notebooks(tmp_path / "work") == []
    names = sorted(p.name for p in (tmp_path / "work").glob("*.ipynb"))
    assert [name[0] for name in names] == ["1", "2", "3", "4", "5", "6", "a"]
    mine = tmp_path / "work" / names[0]
    mine.write_text("changed")
    (tmp_path / "work" / names[1]).unlink()
    assert copy_notebooks(tmp_path / "work") == [names[0]]
    assert mine.read_text() == "changed"
    assert (tmp_path / "work" / names[1]).exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecGuideError, match="cannot write"):
        copy_notebooks(tmp_path / "file" / "work")


@pytest.mark.parametrize(("app", "package"), [(False, "jupyterlab"), (True, "voila")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, app, package):
    find = serve.importlib.util.find_spec
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(RecGuideError, match=rf"{package} not installed; pip install 'recguide\[lab\]'"):
        serve.serve(tmp_path, app=app, port=0, browser=False, say=print)


def test_a_taken_port_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RecGuideError, match=f"port {port} is not free"):
            serve.serve(tmp_path, app=False, port=port, browser=False, say=print)


def test_the_server_is_started_as_told_and_its_status_passed_on(tmp_path, monkeypatch):
    started = {}

    class Child:
        def __init__(self, command, cwd, env):
            started.update(command=command, cwd=cwd, token=env.get("JUPYTER_TOKEN"))

        def wait(self):
            return 3

    monkeypatch.setattr(serve.subprocess, "Popen", Child)
    lines = {}
    assert serve.serve(tmp_path, app=False, port=0, browser=False, say=lines.__setitem__) == 3
    assert "--no-browser" in started["command"]
    assert started["cwd"] == tmp_path
    assert started["token"] in lines["lab"]
    assert not any(started["token"] in word for word in started["command"])  # other users may list commands
    serve.serve(tmp_path, app=True, port=0, browser=True, say=lines.__setitem__)
    assert "voila" in started["command"]
    assert "--no-browser" not in started["command"]
