"""No file of the project names a folder of the machine that it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "/(?:" + "|".join(("work", "root", r"tmp", r"home/\w+", r"Users/\w+", "mnt", "scratch")) + r")(?![\w.*-])"
# not part of a longer path or of an address, such as docs/root or https://example.org/tmp
PATTERN = re.compile(r"(?<![\w.~}$)/-])" + MACHINE)


def project_files():
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return []
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    environments = {path.parent for path in paths if path.name == "pyvenv.cfg"}  # a user's own, whatever its name
    return [path for path in paths if path.is_file() and environments.isdisjoint(path.parents)]


def places(text):
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in PATTERN.finditer(text)]


def test_no_file_names_a_folder_of_a_machine():
    files = project_files()
    if not files:
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    found = {}
    for path in files:
        if here := places(path.read_bytes().decode("utf-8", errors="ignore")):
            found[str(path.relative_to(ROOT))] = here[:3]
    assert found == {}


@pytest.mark.parametrize("folder", ["work", "root", "tmp", "home/somebody", "Users/somebody", "mnt", "scratch"])
@pytest.mark.parametrize("shape", ['"{}/x.json"', "cd {}", "PATH={}/bin", "({})", "--prompts {}/a.txt", "`{}`"])
def test_a_planted_path_is_found(folder, shape):
    assert places("before " + shape.format("/" + folder) + " after")


@pytest.mark.parametrize(
    "text", ["docs/root", "https://example.org/" + "tmp", "a/work/b", "~/work", "/workshop", "$X/tmp"]
)
def test_other_words_are_not(text):
    assert not places(text)
