"""Builds PyCUDA for simulated devices: ``python tests/harness/rig/build_pycuda.py folder`` takes two to four minutes.

CUDA's headers come from NVIDIA's wheels, and PyCUDA is linked with an empty driver: it needs neither nvcc nor a GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

#: Options of PyCUDA's build, in a file of its user's: unoptimised, it is built in half the time.
OPTIONS = """
CUDA_INC_DIR = {headers!r}
CUDADRV_LIB_DIR = [{libraries!r}]
CUDA_ENABLE_CURAND = False
CXXFLAGS = ["-O0", "-g0", "-w"]
"""


def build(folder: Path) -> None:
    """Install PyCUDA and what it imports into a folder."""
    with tempfile.TemporaryDirectory() as made:
        home, wheels = Path(made), Path(made) / "wheels"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-cache-dir", "--target"]
        subprocess.run([*install, str(wheels), "--no-deps", "nvidia-cuda-profiler-api>=13,<14"], check=True)
        driver = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", str(home / "libcuda.so"), "-x", "c", "/dev/null"]
        subprocess.run(["gcc", *driver], check=True)
        roots = (Path(sysconfig.get_path("purelib")), wheels)
        headers = [str(root / "nvidia" / "cu13" / "include") for root in roots]
        (home / ".aksetup-defaults.py").write_text(OPTIONS.format(headers=headers, libraries=made))
        before = Path.home()
        pips = {  # pip's own settings stay where they are
            f"XDG_{name.upper()}_HOME": os.environ.get(f"XDG_{name.upper()}_HOME", str(before / f".{name}"))
            for name in ("config", "cache")
        }
        shutil.rmtree(folder, ignore_errors=True)
        environment = {**os.environ, **pips, "HOME": made}
        subprocess.run([*install, str(folder), "--no-binary", "pycuda", "pycuda>=2026.1"], env=environment, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
