"""A document's Python blocks, run in order.

Run as a script, with the compiler's flags and documents, it forks a process for each document, in a folder of its own:
imports, and those of pytest, take longer than most documents.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import optree  # noqa: F401 every document uses it
from backends.cpu import compiler

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\) +# (?P<text>.*)$", re.MULTILINE)


def blocks(text: str) -> Iterator[tuple[int, str, str | None]]:
    """The Python blocks of a document: line number, code, and what it prints, or None."""
    found = list(BLOCK.finditer(text))
    for block, after in zip_longest(found, found[1:]):
        if block["language"] == "python":
            below = after is not None and after["language"] == "text" and not text[block.end() : after.start()].strip()
            printed = after["text"] if below else "\n".join(PRINTED.findall(block["text"])) or None
            yield text.count("\n", 0, block.start("text")), block["text"], printed


def run(path: Path) -> None:
    """Run a document; complains of the first block that prints something else."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, code, printed in blocks(path.read_text()):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("\n" * line + code, str(path), "exec"), namespace)
        if printed is not None and output.getvalue().split() != printed.split():
            sys.exit(f"{path.name}:{line}: printed\n{output.getvalue()}\nand not\n{printed}")


def fails(path: Path) -> bool:
    """Whether a document fails, in a child that has imported what all documents do; its errors are printed."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    status = 1
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            run(path)
            status = 0
        except BaseException:
            traceback.print_exc()
        os.chdir("/")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    compiler.FLAGS = tuple(each for each in sys.argv[1:] if each.startswith("-"))
    failed = [each for each in sys.argv[1:] if not each.startswith("-") and fails(Path(each).resolve())]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
