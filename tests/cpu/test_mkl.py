"""Products of matrices by MKL: by a stand-in for it in C, and by MKL itself where it is installed."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler

from backends import gen_backend
from backends.cpu import mkl
from backends.cpu.compiler import find_compiler
from optree import function
from optree.errors import BackendError
from optree.settings import override

INSTALLED = mkl._installed()

#: What is used of MKL, by loops.
STAND_IN = """
#include <stddef.h>
int calls, layer;
static __thread int threads = 5;
int MKL_Set_Num_Threads_Local(int wanted) { int before = threads; threads = wanted; return before; }
int MKL_Set_Interface_Layer(int wanted) { return layer ? layer : wanted; }
#define GEMM(name, T) void name(int order, int ta, int tb, int m, int n, int k, T alpha, const T *a, int lda, \\
                                const T *b, int ldb, T beta, T *c, int ldc) \\
{ \\
    if (threads != 1 || order != 101 || beta != 0 || ldc < n) \\
        return; \\
    if (lda < (ta == 111 ? k : m) || ldb < (tb == 111 ? n : k)) \\
        return; \\
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST); \\
    for (ptrdiff_t i = 0; i < m; i++) \\
        for (ptrdiff_t j = 0; j < n; j++) { \\
            T sum = 0; \\
            for (ptrdiff_t l = 0; l < k; l++) \\
                sum += (ta == 111 ? a[i * lda + l] : a[l * lda + i]) * (tb == 111 ? b[l * ldb + j] : b[j * ldb + l]); \\
            c[i * ldc + j] = alpha * sum; \\
        } \\
}
GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = find_compiler()
    if found is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("mkl")
    (folder / "mkl.c").write_text(STAND_IN)
    command = [*found.command, "-O3", "-shared", "-fPIC", "mkl.c", "-o", "libmkl_rt.so.3"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libmkl_rt.so.3"


def test_mkl_is_there_for_the_tests_below():
    if INSTALLED is None:
        pytest.skip("the package mkl is not installed, and the tests run on its stand-in: pip install mkl")


@pytest.fixture(params=["stand-in"] if INSTALLED is None else ["stand-in", "MKL"])
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> mkl.Product:
    monkeypatch.setattr(mkl, "SMALL", 1 << 21)  # so that the tests' arrays are large
    if request.param == "stand-in":
        return mkl.Product(str(request.getfixturevalue("stand_in")))
    return mkl.Product(str(INSTALLED))


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Whole numbers, whose products are exact."""
    return np.random.RandomState(seed).randint(-9, 9, shape).astype(dtype)


def by_mkl(product: mkl.Product, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the pieces that MKL is asked for, from now on."""
    asked: list[tuple[int, ...]] = []
    gemm = product._gemm
    monkeypatch.setattr(product, "_gemm", lambda x, y, z: (asked.append(z.shape), gemm(x, y, z))[1])
    return asked


LAYOUTS = {
    "rows": lambda m, n: values(m, n),
    "columns": lambda m, n: values(n, m).T,
    "part of rows": lambda m, n: values(m + 3, n + 5)[2:-1, 4:-1],
    "part of columns": lambda m, n: values(n + 5, m + 3)[4:-1, 2:-1].T,
    "every other column": lambda m, n: values(m, 2 * n)[:, ::2],
    "upside down": lambda m, n: values(m, n)[::-1],
    "backwards": lambda m, n: values(m, n)[:, ::-1],
    "one row again and again": lambda m, n: np.broadcast_to(values(1, n), (m, n)),
    "misaligned": lambda m, n: np.frombuffer(b"-" + values(m, n).tobytes(), np.float32, offset=1).reshape(m, n),
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_layouts_of_operands(product, monkeypatch, left, right):
    asked = by_mkl(product, monkeypatch)
    x, y = LAYOUTS[left](150, 140), LAYOUTS[right](140, 130)
    np.testing.assert_array_equal(product(x, y), x @ y)
    assert asked


TARGETS = {name: LAYOUTS[name] for name in LAYOUTS if name not in ("one row again and again", "misaligned")}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
def test_targets(product, monkeypatch, layout, dtype, threads):
    asked = by_mkl(product, monkeypatch)
    x, y = values(300, 210, dtype=dtype), values(210, 280, seed=1, dtype=dtype)
    memory = np.zeros((700, 700), dtype)
    strides = TARGETS[layout](300, 280).strides
    strides = tuple(step // 4 * memory.itemsize for step in strides)
    start = memory.size // 2 if min(strides) < 0 else 0
    out = np.ndarray((300, 280), dtype, memory, start * memory.itemsize, strides)
    with override(num_threads=threads):
        assert product(x, y, out=out) is out
    np.testing.assert_array_equal(out, x @ y)
    assert np.count_nonzero(memory) == np.count_nonzero(out)  # nothing else was written
    assert sum(np.prod(shape) for shape in asked) == out.size
    assert len(asked) == (1 if threads == 1 else 4)


def test_targets_that_are_read(product):
    start, x = values(200, 200) / 8, values(200, 200, seed=1)
    for call, expected in (
        (lambda z: product(z, x, out=z), start @ x),
        (lambda z: product(x, z.T, out=z), x @ start.T),
        (lambda z: product(z[:150], x, out=z[50:]), start[:150] @ x),
    ):
        np.testing.assert_array_equal(call(start.copy()), expected)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 150, 140), (3, 140, 130)),
        ((2, 1, 150, 140), (3, 140, 130)),
        ((150, 140), (2, 140, 130)),
        ((0, 150, 140), (140, 130)),
    ],
)
def test_stacks(product, monkeypatch, left, right):
    asked = by_mkl(product, monkeypatch)
    x, y = values(*left), values(*right, seed=1)
    expected = x @ y
    for given in ((x, y), (x, np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2))):
        np.testing.assert_array_equal(product(*given), expected)
        out = np.zeros((*expected.shape[:-1], 150), np.float32)[..., :130]
        np.testing.assert_array_equal(product(*given, out=out), expected)
    assert bool(asked) == bool(expected.size)


@pytest.mark.parametrize(
    ("left", "right", "dtypes"),
    [
        ((20, 20), (20, 20), "float32 float32"),
        ((3000, 3000), (3000,), "float32 float32"),
        ((3000,), (3000, 3000), "float32 float32"),
        ((3000, 3000), (3000, 2), "float32 float32"),
        ((200, 200), (200, 200), "float32 float64"),
        ((200, 200), (200, 200), "int32 int32"),
        ((200, 200), (200, 200), "float16 float16"),
    ],
    ids=str,
)
def test_what_is_numpys(product, monkeypatch, left, right, dtypes):
    x, y = (values(*shape, dtype=dtype) for shape, dtype in zip((left, right), dtypes.split(), strict=True))
    asked = by_mkl(product, monkeypatch)
    found, expected = product(x, y), x @ y
    np.testing.assert_array_equal(found, expected)
    assert not asked and found.dtype == expected.dtype


def test_small_products_are_numpys(product, monkeypatch):
    monkeypatch.undo()
    asked = by_mkl(product, monkeypatch)
    product(values(256, 255), values(255, 256))
    assert not asked
    product(values(256, 256), values(256, 256))
    assert asked


def test_special_values_travel(product):
    x, y = values(200, 200), values(200, 200, seed=1)
    x[3, 4], y[4, 5], out = np.inf, np.nan, np.full((200, 200), np.nan, np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(product(x, y, out=out), x @ y)


def test_misfits_are_numpys_errors(product):
    with pytest.raises(ValueError, match="mismatch"):
        product(values(200, 200), values(201, 200))
    with pytest.raises(ValueError):
        product(values(200, 200), values(200, 200), out=np.empty((200, 199), np.float32))


def test_threads_that_others_ask_mkl_for_stay(product):
    set_threads, _ = product._functions
    set_threads(3)
    x = values(300, 300)
    np.testing.assert_array_equal(product(x, x), x @ x)
    assert set_threads(0) == 3


# Backends


@pytest.fixture(params=[True, False])
def be(request, product, monkeypatch, folder) -> Any:
    """A backend that multiplies by MKL."""
    if request.param and find_compiler() is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(mkl, "_installed", lambda: product.path)
    return gen_backend("cpu", jit=request.param)


def test_a_backend_says_and_does_so(be, monkeypatch):
    assert f"MKL ({be.product.blas.path})" in be.info()
    asked = by_mkl(be.product.blas, monkeypatch)
    x, w, z = be.array(values(150, 140)), be.array(values(130, 140, seed=1)), be.empty((150, 130))
    for _ in range(3):
        z[:] = be.dot(x, w.T)
    step = function([], updates={z: be.dot(x, w.T) * 2 + z})
    step()
    step()
    np.testing.assert_array_equal(z.get(), 5 * (x.get() @ w.get().T))
    assert len(asked) == 5
    square = be.array(values(150, 150))
    square[:] = be.dot(square, square)
    np.testing.assert_array_equal(square.get(), values(150, 150) @ values(150, 150))


def test_the_setting_decides(product, monkeypatch):
    monkeypatch.setattr(mkl, "_installed", lambda: product.path)
    with override(blas="numpy"):
        be = gen_backend("cpu")
        assert not hasattr(be.product.blas, "path") and "NumPy's BLAS" in be.info()
    for blas in ("auto", "mkl"):
        with override(blas=blas):
            assert gen_backend("cpu").product.blas.path == product.path
    monkeypatch.setattr(mkl, "_installed", lambda: None)
    assert "NumPy's BLAS" in gen_backend("cpu").info()
    with override(blas="mkl"), pytest.raises(BackendError, match=r"needs the package mkl: pip install"):
        gen_backend("cpu")


@needs_compiler
def test_a_library_that_cannot_be_used_is_an_error_that_says_how_to_go_on(tmp_path, stand_in):
    broken = tmp_path / "libmkl_rt.so.3"
    broken.write_text("no library")
    x = values(256, 256)
    with pytest.raises(BackendError, match=r"cannot be loaded: .*OPTREE_BLAS=numpy"):
        mkl.Product(str(broken))(x, x)
    other = tmp_path / "other.so"
    other.write_bytes(stand_in.read_bytes())
    ctypes.c_int.in_dll(ctypes.CDLL(str(other)), "layer").value = 1
    with pytest.raises(BackendError, match=r"another kind of integers.*OPTREE_BLAS=numpy"):
        mkl.Product(str(other))(x, x)
