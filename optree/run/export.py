"""Functions written as programs of another language."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from optree.errors import ExportError, OperandError, describe
from optree.run.function import Function

#: The languages that functions are exported to.
TARGETS = ("c", "cuda")

#: The places of weights: `auto` is the source if they are small.
WEIGHTS = ("auto", "source", "safetensors")


def export(
    f: Function,
    folder: str | os.PathLike[str],
    target: str = "c",
    name: str | None = None,
    weights: str = "auto",
    example: Sequence[Any] | None = None,
) -> Path:
    """Write a function, with its weights, as standalone C, which needs neither Python nor BLAS, or CUDA.

    The header documents the arguments; open sizes are arguments, too. The test program repeats one call. In CUDA,
    arrays are in a device's memory, and cuBLAS multiplies matrices.

    Parameters
    ----------
    f : Function
    folder : path
        A folder that is new or empty; it gets all files or none.
    target : {'c', 'cuda'}
    name : str, optional
        The name of the C function; by default the function's, or else the folder's.
    weights : {'auto', 'source', 'safetensors'}
        Where tensors are stored; by default in the source if they have at most 64 KiB.
    example : sequence, optional
        The arguments of the call in the test program; by default random ones.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ExportError
        If an op of the function is not written in the language; it is named, with the line that built it.
    OperandError
        If `f` is no function.

    Examples
    --------
    >>> import tempfile
    >>> import optree
    >>> w = be.array([[1.0], [2.0], [3.0]], name="w")
    >>> x = optree.TensorType("float32", (None, 3))("x")
    >>> layer = optree.function([x], be.tanh(be.dot(x, w)), name="layer")
    >>> sorted(file.name for file in export(layer, tempfile.mkdtemp()).iterdir())
    ['CMakeLists.txt', 'layer.c', 'layer.h', 'layer_products_float32.c', 'layer_test.c']
    """
    if not isinstance(f, Function):
        raise OperandError(f"export: a function is wanted, not {describe(f)}; optree.function makes one of trees")
    for what, asked, known in (("target", target, TARGETS), ("weights", weights, WEIGHTS)):
        if asked not in known:
            raise ExportError(f"export: {what} is one of {', '.join(known)}, not {asked!r}")
    to = Path(folder).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ExportError(f"export: {to} is not an empty folder; name a new one, or remove it first")
    if f.backend is None or f.mode.kind != "default":
        raise ExportError(f"export: {f} has no kernels: its mode is not the default, or there was no backend")
    _write(to, f.backend.exported(f, target, name or f.name or to.name, weights, example))
    return to


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files into a folder that is new or empty: all, or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made:
        inner = Path(made) / folder.name
        inner.mkdir()
        for name, content in files.items():
            (inner / name).write_bytes(content)
        inner.replace(folder)
