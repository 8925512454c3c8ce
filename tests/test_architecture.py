"""Who may import whom: lab -> predictors -> recguide -> kernels. Parses every file of the tree, runs none of it."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE_DIR = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]

RANKS = {"recguide.data": 0, "recguide.kernels": 0, "recguide": 1, "recguide.predictors": 2, "recguide.lab": 3}
ENGINE = {"recguide.kernels", "recguide"}
FOR_PEOPLE = {"sklearn", "pandas", "ipywidgets", "anywidget", "traitlets", "IPython", "jupyterlab", "plotly", "widgets"}
FOR_KERNELS = {"torch", "triton"} | sys.stdlib_module_names


class Import(NamedTuple):
    where: str
    module: str  # the one that imports
    target: str
    lazy: bool  # inside a function


def walk(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it only runs when a function is called."""
    for child in ast.iter_child_nodes(node):
        yield child, lazy
        yield from walk(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def absolute(name: str, level: int, package: str) -> str:
    """The full name of a relative import: one dot is the package itself, each further dot one package up."""
    if not level:
        return name
    base = package.split(".")[: package.count(".") + 2 - level]
    return ".".join([*base, name] if name else base)


def call_target(node: ast.Call, package: str) -> list[str]:
    """The literal name given to import_module or __import__."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    match node.args:
        case [ast.Constant(value=str(name)), *_] if function in ("import_module", "__import__"):
            return [absolute(name.lstrip("."), len(name) - len(name.lstrip(".")), package)]
    return []


def targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = absolute(module or "", level, package)
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Call():
            return call_target(node, package)
    return []


def file_imports(file: Path, module: str) -> Iterator[Import]:
    is_package = file.stem == "__init__"
    package = module if is_package else module.rpartition(".")[0]
    for node, lazy in walk(ast.parse(file.read_text(), file)):
        for target in targets(node, package):
            yield Import(f"{file}:{node.lineno}", module, target, lazy)


def tree_imports(root: Path) -> Iterator[Import]:
    for name, folder in PACKAGE_DIR.items():
        for file in sorted((root / folder).rglob("*.py")):
            below = file.relative_to(root / folder).with_suffix("").parts
            yield from file_imports(file, ".".join((name, *below)).removesuffix(".__init__"))


def layer(module: str) -> str | None:
    """The top-level folder's import name that a module belongs to; none for other projects' modules."""
    parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in RANKS), None)


def reaches_up(found: Import) -> bool:
    """A folder imports only folders below it; the command line reaches up inside its functions."""
    if found.module.startswith(("recguide.cli", "recguide.commands.")) and found.lazy:
        return False
    return layer(found.target) is not None and RANKS[layer(found.target)] > RANKS[layer(found.module)]


def engine_imports_tools_for_people(found: Import) -> bool:
    return layer(found.module) in ENGINE and found.target.split(".")[0] in FOR_PEOPLE


def kernels_import_more_than_torch(found: Import) -> bool:
    allowed = layer(found.target) == "recguide.kernels" or found.target.split(".")[0] in FOR_KERNELS
    return layer(found.module) == "recguide.kernels" and not allowed


def kernels_are_costly_to_import(found: Import) -> bool:
    """transformers imports any top-level `kernels` on the path, as ours is when run from the repository root."""
    return found.module == "recguide.kernels" and not found.lazy


def needs_the_repository_root(found: Import) -> bool:
    """A folder's own name leads to it from the repository root only; its import name always does."""
    return found.target.split(".")[0] in set(PACKAGE_DIR.values()) - {"recguide"}


RULES = [
    reaches_up,
    engine_imports_tools_for_people,
    kernels_import_more_than_torch,
    kernels_are_costly_to_import,
    needs_the_repository_root,
]


def broken(root: Path) -> set[str]:
    return {rule.__name__ for rule in RULES if any(map(rule, tree_imports(root)))}


@pytest.mark.parametrize("rule", RULES)
def test_tree_keeps(rule):
    assert [found for found in tree_imports(ROOT) if rule(found)] == []


def test_every_layer_has_its_rank():
    assert set(PACKAGE_DIR) == set(RANKS)


BREACHES = [
    ("recguide/engine/step.py", "from recguide.lab import session", reaches_up),
    ("recguide/engine/step.py", "from recguide import lab", reaches_up),
    ("recguide/engine/step.py", "from ..predictors import fit", reaches_up),
    ("recguide/engine/__init__.py", "from .. import lab", reaches_up),
    ("recguide/__init__.py", "from . import predictors", reaches_up),
    ("recguide/engine/step.py", "def late():\n    import recguide.lab.session", reaches_up),
    ("recguide/cli.py", "import recguide.lab", reaches_up),
    ("recguide/cli.py", "class Lab:\n    from recguide import lab", reaches_up),
    ("recguide/bench/cli.py", "def late():\n    import recguide.lab", reaches_up),
    ("predictors/fit.py", "if True:\n    import recguide.lab", reaches_up),
    ("recguide/engine/step.py", "load = importlib.import_module('recguide.lab')", reaches_up),
    ("recguide/engine/step.py", "load = __import__('recguide.lab')", reaches_up),
    ("recguide/engine/step.py", "load = import_module('..lab', __package__)", reaches_up),
    ("recguide/engine/step.py", "from sklearn.linear_model import Ridge", engine_imports_tools_for_people),
    ("recguide/cli.py", "def late():\n    import plotly.express", engine_imports_tools_for_people),
    ("kernels/attention.py", "def late():\n    import pandas as pd", engine_imports_tools_for_people),
    ("kernels/attention.py", "import numpy as np", kernels_import_more_than_torch),
    ("kernels/attention.py", "from recguide.engine import plan", kernels_import_more_than_torch),
    ("kernels/attention.py", "from importlib import resources\nimport recguide.data", kernels_import_more_than_torch),
    ("kernels/__init__.py", "import torch", kernels_are_costly_to_import),
    ("kernels/__init__.py", "from .attention import attend", kernels_are_costly_to_import),
    ("recguide/engine/step.py", "from kernels import attention", needs_the_repository_root),
    ("lab/session.py", "import predictors.fit", needs_the_repository_root),
]

ALLOWED = [
    ("recguide/engine/step.py", "from recguide.kernels import attention\nfrom . import plan\nfrom ..data import x"),
    ("recguide/engine/step.py", "import torch\nimport numpy as np\nfrom recguide import laboratory, engine"),
    ("recguide/cli.py", "def lab():\n    from recguide.lab import session\n    import recguide.predictors.fit"),
    ("predictors/fit.py", "import sklearn\nfrom recguide.trace import read"),
    ("lab/widgets.py", "import plotly\nimport ipywidgets\nfrom recguide.predictors import fit\nfrom .. import engine"),
    ("kernels/attention.py", "import math\nimport triton.language as tl\nfrom . import signals\nfrom torch import nn"),
    ("kernels/deep/paged.py", "from ..signals import top2\nfrom recguide.kernels import attention"),
]


def write(root: Path, file: str, source: str) -> None:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(source)


@pytest.mark.parametrize(("file", "source", "rule"), BREACHES)
def test_breach_is_found(tmp_path, file, source, rule):
    write(tmp_path, file, source)
    assert rule.__name__ in broken(tmp_path)


@pytest.mark.parametrize(("file", "source"), ALLOWED)
def test_allowed_import_passes(tmp_path, file, source):
    write(tmp_path, file, source)
    assert broken(tmp_path) == set()
