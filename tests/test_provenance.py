"""What produced a file, and files that are written whole or not at all."""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from recguide import __version__
from recguide import provenance as module
from recguide.errors import RecGuideError
from recguide.provenance import provenance, write_json


def git(folder, *words):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small repository that stands in for the one this package lies in."""
    git(tmp_path, "init", "-q")
    (tmp_path / "package").mkdir()
    source = tmp_path / "package" / "provenance.py"
    source.write_text("pass\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.setattr(module, "__file__", str(source))
    return tmp_path


def test_versions_and_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(Path("bin") / "recguide"), "bench", "--limit", "3"])
    record = provenance()
    assert record["command"] == "recguide bench --limit 3"
    assert record["recguide"] == __version__
    assert record["torch"] == torch.__version__
    assert record["python"] == platform.python_version()
    assert record["threads"] == torch.get_num_threads()
    assert "cores" in record["device"] or torch.cuda.is_available()
    assert json.loads(json.dumps(record)) == record


def test_time_is_utc():
    created = datetime.fromisoformat(provenance()["created"])
    assert created.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - created) < timedelta(hours=1)


def test_revision_is_the_commit(checkout):
    head = git(checkout, "rev-parse", "HEAD").strip()
    assert provenance()["revision"] == head[:12]


def test_a_changed_tree_is_marked(checkout):
    (checkout / "package" / "provenance.py").write_text("changed\n")
    assert provenance()["revision"].endswith("+")


def test_outside_a_checkout_there_is_no_revision(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance()["revision"] is None


def test_without_git_there_is_no_revision(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance()["revision"] is None


def test_the_commit_of_another_project_is_not_ours(checkout, monkeypatch):
    """Installed into an environment inside somebody's own repository, which ignores it."""
    (checkout / ".gitignore").write_text("venv/\n")
    site = checkout / "venv" / "site-packages"
    site.mkdir(parents=True)
    (site / "provenance.py").write_text("pass\n")
    monkeypatch.setattr(module, "__file__", str(site / "provenance.py"))
    assert provenance()["revision"] is None


def test_json_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "out.json"
    write_json(path, {"x": [1, None, "é"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"x": [1, None, "é"]}
    assert [p.name for p in path.parent.iterdir()] == ["out.json"]


def test_an_older_file_is_replaced(tmp_path):
    path = tmp_path / "out.json"
    write_json(path, {"old": 1})
    write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"new": 2}


def test_an_older_file_survives_a_value_that_is_no_json(tmp_path):
    path = tmp_path / "out.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("place", ["file/out.json", "file/deep/out.json", "folder"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecGuideError, match="cannot write") as caught:
        write_json(tmp_path / place, {})
    assert str(caught.value).startswith(str(tmp_path / place))
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_disk_that_fills_up_keeps_the_older_file_and_leaves_no_half(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    write_json(path, {"old": 1})
    plain = Path.write_text

    def full(self, text, *rest, **more):
        plain(self, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RecGuideError, match="No space left on device"):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
