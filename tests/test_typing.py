"""Types for editors and type checkers: right programs pass mypy's strict mode, and mistakes in them are errors."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness.scripts import script

ROOT = Path(__file__).parent.parent

RIGHT = """
import numpy as np

import optree
from backends import gen_backend
from optree import train

be = gen_backend("cpu")
x, w = be.array([[1.0, 2.0]], name="x"), be.zeros((2, 3), name="w")
loss = be.sum(be.tanh(be.dot(x, w)) ** 2, axis=1, keepdims=False)
opt = train.Adam([w], 0.1, clip_norm=1.0)
step = optree.function([], loss, updates=opt.updates(be.mean(loss)))
step()
out: np.ndarray = be.exp(x, out=be.empty((1, 2))).get()
"""

WRONG = {
    "be.tahn(x)": 'has no attribute "tahn"',
    "z: int = be.tanh(x)": "Incompatible types in assignment",
    "y: int = be.sum(x, axis=0)": "Incompatible types in assignment",
    "be.sum(x, axes=0)": 'Unexpected keyword argument "axes"',
    "be.tanh(x, x)": "Too many positional arguments",
    "train.Adam([w], lr=0.1)": 'Unexpected keyword argument "lr"',
}


def test_the_methods_types_are_the_registrys():
    stubs = script("tools/stubs.py")
    assert stubs.PATH.read_text() == stubs.text(), "make functions writes it"


@pytest.mark.matrix(least=0)
def test_type_checkers_find_mistakes_in_users_programs(tmp_path):
    """With a cache that is kept: a check of the whole package takes seven seconds."""
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "users"),
    ]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, cwd=ROOT)
    # The cache has the folder of the run that filled it.
    errors = [line.partition(program.name)[2] for line in done.stdout.splitlines() if ": error: " in line]
    found = dict(line.split(": error: ") for line in errors)
    first = RIGHT.count("\n") + 1
    for number, (line, error) in enumerate(WRONG.items(), first):
        assert error in found.pop(f":{number}", ""), f"{line}: {done.stdout}{done.stderr}"
    assert not found, done.stdout
