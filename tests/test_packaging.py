"""Does the package hold the whole tree? Compares files with the package list and with a built wheel.

Knows nothing of what the modules do. The wheel is tried in an environment of its own, which sees the dependencies of
the running one but not its install of this project: `python -m pytest tests/test_packaging.py`.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Imports everything it finds and prints {module: file or traceback} as its last line.
IMPORT_ALL = """
import importlib, json, pkgutil, traceback, recguide

def load(name):
    try:
        return importlib.import_module(name).__file__
    except BaseException:
        return traceback.format_exc()

names = [module.name for module in pkgutil.walk_packages(recguide.__path__, "recguide.", onerror=lambda name: None)]
print("\\n" + json.dumps({name: load(name) for name in ["recguide", *names]}))
"""


class Environment(NamedTuple):
    python: Path
    scripts: Path
    site: Path

    def run(self, *arguments: str | Path) -> str:
        """Output of a command run beside the environment, where no source folder can be picked up."""
        return subprocess.run(arguments, cwd=self.site, check=True, stdout=subprocess.PIPE, text=True).stdout


def setuptools_table(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]


def modules(root: Path) -> dict[str, Path]:
    """Import name and file of every module at or below the mapped folders."""
    found = {}
    for name, folder in setuptools_table(root)["package-dir"].items():
        for file in (root / folder).rglob("*.py"):
            below = file.relative_to(root / folder).with_suffix("").parts
            found[".".join((name, *below)).removesuffix(".__init__")] = file
    return found


def folders(root: Path) -> dict[str, Path]:
    """Import name and path of every folder that holds modules."""
    return {
        name if file.stem == "__init__" else name.rpartition(".")[0]: file.parent
        for name, file in modules(root).items()
    }


def unlisted(root: Path) -> set[str]:
    return set(folders(root)) - set(setuptools_table(root)["packages"])


def without_code(root: Path) -> set[str]:
    return set(setuptools_table(root)["packages"]) - set(folders(root))


def without_init(root: Path) -> set[str]:
    return {name for name, folder in folders(root).items() if not (folder / "__init__.py").exists()}


def unmapped(root: Path) -> set[str]:
    """Top-level packages that no import name leads to."""
    packages = {file.parent.name for file in root.glob("*/__init__.py")}
    return packages - set(setuptools_table(root)["package-dir"].values()) - {"tests"}


def files(folder: Path) -> dict[str, int]:
    """Size of each file below the folder, compiled ones aside."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def build_wheel(source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", target, source]
    subprocess.run(command, check=True)
    (wheel,) = target.glob("recguide-*.whl")
    return wheel


def copy_sources(root: Path, target: Path) -> Path:
    """A tree to build in, so that neither a stale build folder gets into the wheel nor a new one into the tree."""
    for folder in setuptools_table(root)["package-dir"].values():
        shutil.copytree(root / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, target)
    return target


def make_environment(folder: Path, wheel: Path) -> Environment:
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    scripts, site = Path(paths["scripts"]), Path(paths["purelib"])
    made = Environment(scripts / "python", scripts, site)
    pip = [sys.executable, "-m", "pip", "--python", made.python, "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    # A path named in a .pth file is searched, but its own .pth files (the editable install is one) are not followed.
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Environment:
    base = tmp_path_factory.mktemp("wheel")
    (base / "source").mkdir()
    wheel = build_wheel(copy_sources(ROOT, base / "source"), base / "dist")
    return make_environment(base / "venv", wheel)


@pytest.mark.parametrize("fault", [unlisted, without_code, without_init, unmapped])
def test_package_list_matches_the_tree(fault):
    assert fault(ROOT) == set()


@pytest.mark.parametrize(
    ("file", "fault", "name"),
    [
        ("engine/deep/part.py", unlisted, "pkg.engine.deep"),
        ("extra/part.py", unlisted, "pkg.extra"),
        ("engine/bare/part.py", without_init, "pkg.engine.bare"),
        ("stray/__init__.py", unmapped, "stray"),
        (None, without_code, "pkg.gone"),
    ],
)
def test_faults_are_found(tmp_path, file, fault, name):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.setuptools]\npackages = ['pkg', 'pkg.gone']\n"
        "[tool.setuptools.package-dir]\npkg = 'pkg'\n'pkg.engine' = 'engine'\n'pkg.extra' = 'extra'\n"
    )
    if file:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    assert name in fault(tmp_path)


@pytest.mark.slow
def test_wheel_imports_from_its_own_files(installed):
    loaded = json.loads(installed.run(installed.python, "-I", "-c", IMPORT_ALL).splitlines()[-1])
    assert set(loaded) == set(modules(ROOT))
    if importlib.util.find_spec("triton") is None:  # an extra: its kernels are imported where they run
        loaded = {name: file for name, file in loaded.items() if "No module named 'triton'" not in file}
    assert {name: file for name, file in loaded.items() if not file.startswith(str(installed.site))} == {}


@pytest.mark.slow
def test_wheel_holds_the_files_that_are_not_python(installed):
    assert files(installed.site / "recguide" / "data") == files(ROOT / "data")
    assert files(installed.site / "recguide" / "kernels" / "csrc") == files(ROOT / "kernels" / "csrc")


@pytest.mark.slow
def test_wheel_command_starts(installed):
    assert "Usage" in installed.run(installed.scripts / "recguide", "--help")
