"""Functions exported as CUDA: compiled by NVRTC and nvcc, and run by the emulation on the CPU."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
import test_export as in_c
from harness import cuda
from harness.memory import without_limit
from harness.nvrtc import compile_cuda, installed

import optree
from backends import gen_backend
from optree.errors import ExportError

pytestmark = cuda.needs_gxx

HEADERS = cuda.HEADERS / "exported"

LAUNCH = """
#include "launch.h"
static const void *const addresses[] = {{{addresses}}};
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t)
{{
    unsigned number = 0;
    while (addresses[number] != kernel)
        number++;
    const cuda_on_cpu::Launch launch = {{
        {{grid.x, grid.y, grid.z}}, {{block.x, block.y, block.z}}, (unsigned)shared, 0, 0, 60}};
    const char *const error = cuda_on_cpu::cuda_on_cpu_launch(number, &launch, given);
    return error ? puts(error), cudaErrorUnknown : cudaSuccess;
}}
"""


@pytest.fixture
def be():
    return gen_backend("cpu", jit=True, rng_seed=0)


def run(folder, to):
    """Compile the test program for the emulation and run it; what it prints."""
    to.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, to)
    (kernels,) = to.glob("*_kernels.cuh")
    source = kernels.read_text()
    names = [name for _, name in cuda._GLOBAL.findall(source)]
    lines = [cuda.unit([source]), LAUNCH.format(addresses=", ".join(f"(void *)source0::{x}_of_0" for x in names))]
    kernels.write_text("\n".join([*lines, *(f"#define {x} source0::{x}_of_0" for x in names)]))
    includes = [f"-I{each}" for each in (to, HEADERS, cuda.HEADERS)]
    sources = sorted(map(str, to.glob("*.cu")))
    runtime = str(cuda._part("runtime.cpp", None))
    command = ["g++", *cuda.FLAGS, *includes, "-x", "c++", *sources, "-x", "none", runtime, "-o", str(to / "program")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(without_limit(str(to / "program")), capture_output=True, text=True, cwd=to)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def exported(f, folder, **options):
    """The folder of a function, whose test program calls it with rows that no block divides."""
    rng, arrays = np.random.default_rng(1), []
    for x in f.inputs:
        shape = [(70, 131)[axis] if size is None else size for axis, size in enumerate(x.type.shape)]
        values = rng.standard_normal(shape) if x.type.dtype.kind == "f" else rng.integers(1, 99, shape)
        arrays.append(values.astype(x.type.dtype))
    return optree.export(f, folder, target="cuda", example=arrays, **options)


def _head(be):
    x = in_c.rows(None, 6)
    y = be.layer_norm(be.dot(x, in_c.weights(be, 6, 7)), in_c.weights(be, 7), in_c.weights(be, 7, name="b"))
    more = [be.sum(x, axis=0), be.tanh(x.T) + be.reshape(x, (6, -1)), be.mean(x)]
    return [x], [be.softmax(y, axis=1), *more], None


CASES = (_head, *(case for case in in_c.CASES if case.__name__ not in ("_loops", "_indices")))


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_it_computes_what_the_function_computes(be, case, tmp_path):
    inputs, outputs, updates = case(be)
    f = optree.function(inputs, outputs, updates=updates)
    folder = exported(f, tmp_path / "f")
    assert run(folder, tmp_path / "run") == "0 values differ\n"
    if installed() is not None:
        compile_cuda((folder / "f_kernels.cuh").read_text(), "sm_75")
    launches = (folder / "f.h").read_text().count("   f_kernel_")
    assert launches == (folder / "f.cu").read_text().count("launch((const void *)f_kernel_")


def test_functions_of_a_gpu_are_exported(tmp_path, gpu):
    inputs, outputs, _ = in_c._mlp(gpu)
    f = optree.function(inputs, outputs)
    assert run(exported(f, tmp_path / "f"), tmp_path / "run") == "0 values differ\n"
    assert in_c.run(optree.export(f, tmp_path / "g")) == "0 values differ\n"
    assert f.backend is gpu


def test_weights_in_a_file(be, tmp_path):
    inputs, outputs, updates = in_c._training(be)
    folder = exported(optree.function(inputs, outputs, updates=updates), tmp_path / "f", weights="safetensors")
    assert (folder / "f.safetensors").exists()
    assert run(folder, tmp_path / "run") == "0 values differ\n"


@pytest.mark.parametrize("op", ["take", "sort", "scan", "float16"])
def test_what_has_no_cuda_is_refused_by_name_and_line(be, op, tmp_path):
    x = in_c.rows(None, 4)
    values = {
        "take": lambda: be.take(x, be.array([0, 1], dtype="int64"), axis=1),
        "sort": lambda: be.sort(x, axis=0),
        "scan": lambda: be.while_loop(lambda y: be.any(y < 9), lambda y: y + y, x[0], limit=9),
        "float16": lambda: x.astype("float16"),
    }
    f = optree.function([x], values[op]())
    with pytest.raises(ExportError, match=rf"^export: .*{op}.*test_export_cuda.py:\d+"):
        optree.export(f, tmp_path / "f", target="cuda")
    assert not any(tmp_path.iterdir())


@pytest.mark.matrix(least=0)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_compiles_the_library_and_its_test_without_a_warning(be, tmp_path):
    inputs, outputs, _ = in_c._constants(be)
    folder = exported(optree.function(inputs, outputs), tmp_path / "f")
    for name in ("f", "f_test"):
        command = ["nvcc", "-arch=sm_90", "-Xcompiler=-Wall,-Wextra", "-c", f"{name}.cu", "-o", f"{name}.o"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stderr
