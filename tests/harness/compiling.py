"""Helpers of the tests of compiled sources: sources, processes and the disk cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from backends.cpu import compiler
from backends.cpu.codegen.halves import CONVERSIONS, narrow_functions
from backends.cpu.codegen.printer import NAME, SHARED, C
from backends.cpu.codegen.vector_math import MATHEMATICS
from backends.cpu.compiler import after_definitions, compile_source, find_compiler
from backends.execution import compilations as cache
from backends.execution.printer_common import complex_type, quotients

ROOT = Path(__file__).resolve().parent.parent.parent

needs_compiler = pytest.mark.skipif(os.name != "posix" or find_compiler() is None, reason="there is no C compiler")

_numbers = count(int(time.time() * 1e6))


def adder(number=None):
    """A source that no other test has, and the number that its function adds."""
    number = next(_numbers) % 2**50 if number is None else number
    return f"void add(double *x) {{ x[0] += {number}.0; }}\n", number


def added(function):
    x = np.zeros(1)
    function(x.ctypes.data)
    return int(x[0])


def compiled(source=None):
    """Compile a source, by default a new one, and check what it gives."""
    source, number = adder() if source is None else source
    assert added(compile_source(source, "add")) == number
    return source, number


def program(path, text):
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


def python(code, **environment):
    """Run code in a new process."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, **{name: str(given) for name, given in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process, limit=60):
    output, errors = process.communicate(timeout=limit)
    assert process.returncode == 0, errors
    return output


CHILDREN = """
import os, sys, traceback
{head}
failed = []
for name, code in {cases!r}.items():
    if (child := os.fork()) == 0:
        try:
            exec(code, dict(globals()))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    failed += [name] * bool(os.waitpid(child, 0)[1])
sys.exit(f"failed: {{', '.join(failed)}}" if failed else 0)
"""


def in_children(head, cases, **environment):
    """Run each code of a dict in a process of its own, forked from one that has run a first code, such as imports."""
    cases = {name: textwrap.dedent(code) for name, code in cases.items()}
    done(python(CHILDREN.format(head=textwrap.dedent(head), cases=cases), **environment), limit=240)


def private(folder):
    """The cache's own folder in a cache folder, which has nothing else."""
    assert [file.name for file in folder.iterdir()] == [cache.PRIVATE]
    return folder / cache.PRIVATE


def in_one_file(kernels):
    """Kernels' sources as one, in which each has functions of its own names."""
    narrow = [narrow_functions(dtypes) for dtypes in (list(CONVERSIONS), *([dtype] for dtype in CONVERSIONS))]
    bodies, divisions = [], quotients("static inline")
    complex64, complex128 = map(np.dtype, ("complex64", "complex128"))
    pairs = ["\n".join(complex_type(x, C, made)) for made in (True, False) for x in (complex64, complex128)]
    for i, kernel in enumerate(kernels):
        kernel = kernel.partition(SHARED)[2]
        for head in narrow:
            kernel = kernel.removeprefix(head)
        for text in (divisions, *pairs):
            kernel = kernel.replace(text, "")
        bodies.append(re.sub(rf"\b({NAME}|shared_loop|stage\d|join\d+|philox_\w+)\b", rf"\g<1>_{i}", kernel))
    text = "".join([SHARED, narrow[0], divisions, *pairs[:2], *bodies])
    return f"#include <stdint.h>\n{after_definitions(text, MATHEMATICS)}"


def appears(path):
    """Whether a file comes to be within a minute."""
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


def forget():
    """As in a new process: nothing is in memory."""
    compiler._loaded.forget()
    cache._complaints.clear()
