"""A check for the other package `optree` of the Python Package Index, which cannot be installed beside this one.

It is a library of trees of containers that Keras, among others, depends on. Both install a folder `optree`, and pip
lets the later silently overwrite the earlier. This module's name occurs in op-tree alone, and it imports nothing of the
package, so that it works even where the rest is broken.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

#: Files of the other package, in all its recent versions, that op-tree does not have.
OTHERS = ("_C.pyi", "treespec.py", "version.py")

REMEDY = (
    "The two cannot share an environment: make one for each (python -m venv), or run 'pip uninstall optree' and then "
    "install op-tree anew ('pip install --force-reinstall .' in its folder)"
)


class OverwrittenWarning(UserWarning):
    """Files of another package of the same name beside op-tree's."""


def others(folder: Path) -> list[str]:
    """The files of the other package in a folder."""
    return [name for name in OTHERS if (folder / name).exists()]


def warn_of_others(folder: Path = Path(__file__).parent) -> None:
    """Warn if the other package was installed into op-tree's folder before op-tree, and is broken now."""
    found = others(folder)
    if found:
        warnings.warn(
            f"{folder} holds files of another package named optree ({', '.join(found)}), a library of trees of "
            f"containers that Keras needs: op-tree wrote over the rest of it, and what imports it fails. {REMEDY}",
            OverwrittenWarning,
            stacklevel=3,
        )


def refuse_overwritten(module: ModuleType) -> None:
    """Raise if the module `optree` is not op-tree's: the other package was installed later, or removed since."""
    if hasattr(module, "OpTreeNode"):
        return
    folder = Path(__file__).parent
    what = (
        "another package named optree, a library of trees of containers that Keras needs, was installed after op-tree "
        "and wrote over its files"
        if others(folder)
        else "files are missing, as where another package named optree was installed after op-tree and then removed"
    )
    raise ImportError(f"the package optree in {folder} is not op-tree's: {what}. {REMEDY}", name="optree")
