"""Packaging: the names that packages show, what errors say to install, and the other package called optree."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.compiling import ROOT, done, python

import optree
from backends import gen_backend
from optree.registry import OPS

#: The beginnings of files that the other package writes over ours, or leaves beside them.
THEIRS = {
    "__init__.py": "from optree.registry import register_pytree_node\n",
    "registry.py": "def register_pytree_node(): ...\n",
    "_C.pyi": "",
    "treespec.py": "",
    "version.py": "__version__ = '0.17.0'\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with op-tree installed."""
    for name in ("optree", "backends"):
        shutil.copytree(ROOT / name, tmp_path / name)  # with what Python has compiled
    return tmp_path


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"],
        cwd=site,
        env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installation_of_its_own_says_nothing(site: Path) -> None:
    ran = run(site, "import backends, optree")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_other_optree_installed_later_is_told_of(site: Path) -> None:
    for name, text in THEIRS.items():
        (site / "optree" / name).write_text(text)
    ran = run(site, "import backends")
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the package optree in") and "installed after op-tree" in last
    assert "Keras" in last and "pip uninstall optree" in last and "--force-reinstall" in last


def test_the_other_optree_installed_later_and_removed_is_told_of(site: Path) -> None:
    for name in THEIRS:
        (site / "optree" / name).unlink(missing_ok=True)
    ran = run(site, "import backends")
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the package optree in") and "then removed" in last


def test_the_other_optree_installed_before_is_told_of_and_op_tree_works(site: Path) -> None:
    for name in THEIRS.keys() - {"__init__.py", "registry.py"}:
        (site / "optree" / name).write_text(THEIRS[name])
    ran = run(site, "import optree; print(optree.OpTreeNode.__name__)")
    assert ran.returncode == 0 and ran.stdout == "OpTreeNode\n"
    assert "OverwrittenWarning" in ran.stderr and "treespec.py" in ran.stderr and "pip uninstall optree" in ran.stderr


def test_optree_lists_its_public_names_and_nothing_else() -> None:
    code = "import optree; print(*dir(optree)); print(*sorted([*optree.__all__, '__version__', 'pictures']))"
    shown, public = done(python(code)).splitlines()
    assert shown == public and "grad" in shown.split() and "import_module" not in shown.split()
    assert all(hasattr(optree, name) for name in dir(optree))


def test_a_plain_import_gives_all_public_modules(site: Path) -> None:
    code = "import optree; print(*(getattr(optree, name).__name__ for name in sys.argv[1:]))"
    names = ("distributed", "errors", "pictures", "settings", "testing", "train", "xp")
    told = run(site, f"import sys; sys.argv[1:] = {names}; {code}")
    assert told.stdout.split() == [f"optree.{name}" for name in names], told.stderr
    without = "import sys, optree; sys.modules['grandalf'] = sys.modules['grandalf.graphs'] = None\n"
    told = run(site, without + "print(hasattr(optree, 'pictures')); from optree import *; optree.pictures")
    assert told.stdout == "False\n" and "AttributeError: optree.pictures needs packages" in told.stderr


def test_the_version_is_that_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", optree.__version__)
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == "attr: optree.__version__"


def test_a_backend_lists_what_users_call() -> None:
    be = gen_backend("cpu")
    shown = set(dir(be)) - {name for name, op in OPS.items() if not op.__module__.startswith("optree.")}
    assert {"array", "tanh", "evaluate", "stats", "batch_size", "bsz", "info", "synchronize", "uniform"} <= shown
    assert not {"_plan", "__init__", "allocate", "owned", "borrowed", "home", "plans", "tensor_of", "when"} & shown
    page = (ROOT / "docs" / "functions.md").read_text()
    listed = set(re.findall(r"`(\w+)(?:\(|`)", page))
    state = {"batch_size", "bsz", "compat_mode", "compiler", "datatype", "default_dtype", "device_id", "devices", "jit"}
    state |= {"name", "rng", "rng_state", "stochastic_round", "info", "synchronize"}
    assert not shown - listed - state, "what is shown and written nowhere"


def test_errors_name_packages_that_any_index_has() -> None:
    metadata = (ROOT / "setup.cfg").read_text()
    hints = [
        hint
        for top in ("optree", "backends")
        for path in (ROOT / top).rglob("*.py")
        for hint in re.findall(r"pip install '?(\.\[[\w-]+\]|[\w.-]+)", path.read_text())
        if hint not in ("--force-reinstall", ".")
    ]
    assert len(hints) >= 6
    for hint in hints:  # a package, or an extra of ours
        line = rf"^{hint[2:-1]} =$" if hint.startswith(".[") else rf"^ +{re.escape(hint)}"
        assert "neon-optree" not in hint and re.search(line, metadata, re.MULTILINE), hint
