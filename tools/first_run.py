"""The files and functions that the first run of an assignment, or the first gradient, enters.

The assignment is ``z[:] = a*b + c*sin(d)`` in a new process; its C kernel is in the disk cache. The gradient is that of
``sum(a*b + c*sin(d))``. A function counts once, by its file and qualified name, if it is in ``optree/``
or ``backends/``. Comprehensions and generator expressions, which Python runs as functions (before 3.12, all of them),
are counted separately.

    python tools/first_run.py            # every file with its functions
    python tools/first_run.py --gradient # those of the gradient
    python tools/first_run.py --counts   # the counts alone
    python tools/first_run.py --cold     # with the compiler's run
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import backends
import optree
from backends import gen_backend

#: The folders whose functions count.
FOLDERS = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (optree, backends))

ELEMENTS = 1 << 20


class Entered:
    """The functions entered, as qualified names by file, both in order of first entry."""

    def __init__(self) -> None:
        self.names: dict[str, dict[str, None]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDERS):
            self.names.setdefault(frame.f_code.co_filename, {})[frame.f_code.co_qualname] = None

    def functions(self, path: str) -> list[str]:
        """The named functions of a file."""
        return [name for name in self.names[path] if not name.endswith(">")]

    def inner(self, path: str) -> list[str]:
        """The comprehensions and generator expressions in a file's functions, without lambdas."""
        return [name for name in self.names[path] if name.endswith(">") and "<lambda>" not in name]

    def print(self, listed: bool) -> None:
        """Print each file with its functions, if that is asked for, and the counts."""
        for path in self.names if listed else ():
            print(_relative(path))
            for name in self.functions(path):
                print(f"    {name}")
        files, functions = len(self.names), sum(len(self.functions(path)) for path in self.names)
        inner = sum(len(self.inner(path)) for path in self.names)
        print(
            f"{files} files, {functions} functions; {functions + inner} with comprehensions and generator expressions"
        )


def _relative(path: str) -> str:
    folder = next(folder for folder in FOLDERS if path.startswith(folder))
    return str(Path(path).relative_to(Path(folder).parent))


def measured(of_gradient: bool) -> Entered:
    """The files and functions that the assignment's first run, or the gradient, enters in this process."""
    be = gen_backend("cpu", jit=True)
    a, b, c, d = (be.ones(ELEMENTS, name=name) for name in "abcd")
    z = be.empty(ELEMENTS, name="z")
    grad, entered = optree.grad, Entered()
    cost = be.sum(a * b + c * be.sin(d)) if of_gradient else None
    sys.setprofile(entered)
    try:
        if cost is None:
            z[:] = a * b + c * be.sin(d)
        else:
            grad(cost, d)
    finally:
        sys.setprofile(None)
    return entered


def main(arguments: list[str] | None = None) -> None:
    """Run the assignment in new processes, with an empty cache folder."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--counts", action="store_true", help="print the counts alone")
    parser.add_argument("--gradient", action="store_true", help="enter the gradient instead of the assignment")
    parser.add_argument("--cold", action="store_true", help="compile the kernel in the run that is measured")
    parser.add_argument("--here", action="store_true", help="run in this process, with the cache folder as it is")
    options = parser.parse_args(arguments)
    if options.here:
        measured(options.gradient).print(not options.counts)
        return
    chosen = [f"--{name}" for name in ("counts", "gradient") if getattr(options, name)]
    command = [sys.executable, __file__, "--here", *chosen]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OPTREE_CACHE_DIR": folder}
        if not options.cold:
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
