"""A program on simulated devices: ``python -m harness.rig program.py arguments``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from harness.rig.install import rig

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    with rig().on():
        runpy.run_path(sys.argv[0], run_name="__main__")
