"""Functions exported as C: compiled, run and compared with the functions themselves."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest
from harness.memory import without_limit

import optree
from backends import gen_backend
from backends.cpu import compiler
from optree import TensorType, train
from optree.errors import ExportError
from optree.train import safetensors

GCC = shutil.which("gcc") or shutil.which("cc")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic")
PLAIN = ("-O1", "-fno-math-errno", "-ffp-contract=off", "-fwrapv", "-fopenmp-simd")

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no C compiler")


@pytest.fixture
def be():
    return gen_backend("cpu", jit=True, rng_seed=0)


def rows(*sizes, dtype="float32", name="x"):
    return TensorType(dtype, sizes)(name)


def weights(be, *shape, dtype="float32", name="w"):
    return be.array(np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype), name=name)


def compiled(folder, flags=(), program=True, library=None):
    """The test program, which may take the functions of a library, or a shared object, of an exported function."""
    sources = sorted(str(path) for path in folder.glob("*.c") if program or not path.name.endswith("_test.c"))
    made = folder / ("program" if program else "library.so")
    if library is not None:
        sources = [*map(str, folder.glob("*_test.c")), str(library)]
    command = [GCC, *WARNINGS, *flags, *sources, "-o", str(made), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return made


def run(folder, flags=PLAIN, library=None):
    """Compile the test program and run it; what it prints."""
    program = compiled(folder, flags, library=library)
    done = subprocess.run(without_limit(str(program)), capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _flags_of_kernels():
    return (*compiler.FLAGS, *(choice[0] for choice in compiler.OPTIONAL_FLAGS))


class Called:
    """An exported function, compiled with the flags of kernels, and called by ctypes."""

    def __init__(self, f, folder):
        self.f, self.name = f, folder.name
        self.path = compiled(folder, _flags_of_kernels(), program=False)
        self.library = ctypes.CDLL(str(self.path))
        self.scratch = getattr(self.library, f"{self.name}_scratch")
        self.scratch.restype, self.function = ctypes.c_int64, getattr(self.library, self.name)
        self.tensors = (ctypes.c_void_p * 64)()
        if hasattr(self.library, f"{self.name}_weights"):
            getattr(self.library, f"{self.name}_weights")(self.tensors)

    def __call__(self, sizes, arrays, outputs, scratch=None):
        sizes = [ctypes.c_int64(size) for size in sizes]
        needed = self.scratch(*sizes) if scratch is None else scratch
        memory = np.full(max(needed, 0) + 1, 255, np.uint8)
        given = [x.ctypes.data_as(ctypes.c_void_p) if x is not None else None for x in (*arrays, *outputs)]
        first = [self.tensors] * hasattr(self.library, f"{self.name}_weights")
        status = self.function(*first, *sizes, *given, memory.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(needed))
        assert memory[-1] == 255
        return status


def _mlp(be):
    x = rows(None, 12)
    w, b = weights(be, 12, 7), weights(be, 1, 7, name="b")
    return [x], be.softmax(be.dot(be.tanh(be.dot(x, w) + b), weights(be, 7, 5, name="v")), axis=1), None


def _layer_norm(be):
    x = rows(None, 33)
    return [x], be.layer_norm(x, weights(be, 33, name="gamma"), weights(be, 33, name="beta")), None


def _elementwise(be):
    x, y = rows(None, None), rows(None, 1, name="y")
    return [x, y], [be.exp(-x * x) * 0.5 + y, be.sin(x) * be.log(be.square(y) + 1), be.where(x > y, x, y)], None


def _reductions(be):
    x = rows(None, None, dtype="float64")
    return [x], [be.sum(x, axis=0), be.max(x, axis=1), be.mean(x), be.var(x, axis=1), be.argmax(x, axis=1)], None


def _integers(be):
    x, y = rows(None, dtype="int64"), rows(None, dtype="int64", name="y")
    return [x, y], [x // y, x % y, x * 3 - y, be.sum(x, keepdims=False), x > y, x.astype("int8")], None


def _joined(be):
    x, y = rows(None, 4), rows(None, 4, name="y")
    joined = be.concatenate([x, y * 2], axis=0)
    return [x, y], [joined, x.T, x[:, 1::2] + 1, be.reshape(x, (-1, 2)), be.reshape(x.T, (4, -1)), x], None


def _stacks(be):
    x, y = rows(None, 5, 6), rows(6, 3, name="y")
    products = [be.matmul(x, y), be.matmul(x, be.transpose(x, (0, 2, 1))), be.dot(y, weights(be, 3))]
    more = [be.tensordot(x, y, ((2,), (0,))), be.dot(y.T, x[0, 1]), be.dot(x[0, 0], y)]
    return [x, y], [*products, *more], None


def _training(be):
    x, t = rows(None, 6), rows(None, 1, name="t")
    w, b = weights(be, 6, 1), be.array(np.zeros((1, 1)), name="b")
    loss = be.mean(be.square(be.dot(x, w) + b - t))
    gradients = optree.grad(loss, [w, b])
    opt = [(p, p - 0.1 * g) for p, g in zip([w, b], gradients, strict=True)]
    return [x, t], loss, opt


def _adam(be):
    x = rows(None, 6, dtype="float64")
    w = be.array(np.eye(6, 3), dtype="float64", name="w")
    loss = be.mean(be.square(be.dot(x, w) - 1))
    return [x], loss, train.Adam([w], rate=0.1).updates(loss)


def _state(be):
    x = rows(3)
    state = be.array([1.0, 2.0, 3.0], name="state")
    return [x], [state * 2, state[1:] + 1], [(state, state * 0.5 + x)]


def _shifted(be):
    state = be.array(np.arange(12.0), name="state")
    return [], [be.sum(state), state], [(state, be.concatenate([state[1:], state[:1]], axis=0))]


def _broadcasts(be):
    x, y = rows(None, None, 3), rows(1, None, 3, name="y")
    return [x, y], [x + y, be.sum(x * y, axis=(0, 2)), be.transpose(x, (2, 0, 1)) * 2, x - be.mean(x, axis=0)], None


def _names(be):
    x, y = rows(3, name="int"), rows(3, name="exp; /*")
    return [x, y], x * be.array([1.0, np.inf, np.nan], name="layout") + y * be.array(-0.0, name="x y"), None


def _constants(be):
    x = rows(None, None)
    eye = be.array(np.eye(3), name="eye")
    return [x], [x * np.float32(0.1) + np.float64(2), eye * 2, be.clip(x, -1, 1) ** 3], None


def _pools(be):
    x, y = rows(None, 2, 7, 6), rows(2, None, name="y")
    pooled = [be.max_pool(x, 2), be.avg_pool(x, 3, stride=2, padding=1)]
    return [x, y], [*pooled, be.pad(y, ((0, 0), (2, 1))) * 2], None


def _convolutions(be):
    x, y = rows(None, 2, 7, 6), rows(3, None, 4, name="y")
    given = weights(be, 4, 2, 3, 2, name="b")
    strided = be.conv(x, given, stride=(2, 1), padding=((1, 0), (0, 2)), dilation=(1, 2))
    groups = be.conv(y, weights(be, 3, 2, 6, name="v"), padding="same", groups=2, layout="NWC", weights_layout="WIO")
    relu = be.relu(be.conv(x, given) + be.reshape(weights(be, 4, name="c"), (1, 4, 1, 1)))
    return [x, y], [strided, groups, relu, be.max_pool(be.tanh(strided), 2)], None


def _loops(be):
    x = rows(None, 3)
    (a, b), pairs = be.scan(lambda s, row: ((s[1], s[0] + row), (s[0], row * 2)), [be.zeros((3,)), be.ones((3,))], x)
    back, sums = be.scan(lambda s, row: (be.tanh(s) + row,) * 2, be.zeros((3,)), x, reverse=True)
    root = be.while_loop(lambda y: be.any(be.abs(y * y - 2) > 1e-3), lambda y: (y + 2 / y) / 2, be.ones((3,)), limit=9)
    return (
        [x],
        [a, b, *pairs, back, sums, root, be.cumsum(x, axis=0), be.cumprod(x, axis=1), be.cummax(x, axis=0)],
        None,
    )


def _trained_loop(be):
    x, w = rows(9, 4), weights(be, 4, 4)
    state, outputs = be.scan(lambda s, row: (be.tanh(be.dot(s, w) + row), s * row), be.zeros((4,)), x)
    loss = be.sum(state * state) + be.sum(outputs)
    return [x], loss, [(w, w - 0.1 * optree.grad(loss, w))]


def _indices(be):
    x, y, z = rows(None, 3, dtype="int32"), rows(None, 5, name="y"), rows(2, 4, dtype="uint8", name="z")
    labels = x % 3
    found = [be.take(weights(be, 7, 4), x % 7 - 7, axis=0), y[:, labels], be.embedding(weights(be, 7, 2), x[:1] % 7)]
    return [x, y, z], [*found, be.sort(y, axis=0), be.argsort(z, axis=0), *be.topk(y, 2, axis=1)], None


def _sequences(be):
    x = rows(None, 2, 8)
    outputs = be.lstm(x, weights(be, 8, 16), weights(be, 4, 16, name="u"), weights(be, 16, name="b")).outputs
    return [x], [outputs, be.attention(x, x, x * 2, causal=True), be.attention(x, x, x, x[:, :1, :2] > 0)], None


CASES = (
    *(_loops, _trained_loop, _indices, _sequences),
    _convolutions,
    _pools,
    *(_mlp, _layer_norm, _elementwise, _reductions, _integers, _joined, _stacks, _training, _adam, _state),
)
CASES += (_shifted, _broadcasts, _names, _constants)


def sizes_of(f, arrays, folder):
    """The open sizes of a call, in the order that the header tells."""
    found = []
    for line in (folder / f"{folder.name}.h").read_text().splitlines():
        match = re.match(rf" +n{len(found)}: the size of axis (\d+) of (\w+)", line)
        if match:
            found.append(arrays[[x.name for x in f.inputs].index(match[2])].shape[int(match[1])])
    return found


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_it_computes_what_the_function_computes(be, case, tmp_path):
    inputs, outputs, updates = case(be)
    f = optree.function(inputs, outputs, updates=updates)
    folder = optree.export(f, tmp_path / "f")
    library = Called(f, folder)
    assert run(folder, library=library.path) == "0 values differ\n"
    rng = np.random.default_rng(1)
    has_products = any(folder.glob("*products*"))
    for sizes in ({0: 1, 1: 1}, {0: 9, 1: 6}, {0: 70, 1: 131}):
        arrays = []
        for x in f.inputs:
            shape = [sizes[axis] if n is None else n for axis, n in enumerate(x.type.shape)]
            values = rng.standard_normal(shape) if x.type.dtype.kind == "f" else rng.integers(1, 99, shape)
            arrays.append(values.astype(x.type.dtype))
        expected = f(*arrays)
        expected = [x.get() for x in (expected if isinstance(expected, list) else [expected])]
        found = [np.full_like(x, 77) for x in expected]
        assert library(sizes_of(f, arrays, folder), arrays, found) == 0
        for x, y in zip(found, expected, strict=True):
            if has_products:
                tolerance = 1e-5 if x.dtype == np.float32 else 1e-12
                np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
            else:
                assert x.tobytes() == y.tobytes()


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_by_the_same_tiles_are_equal_bit_for_bit(be, dtype, tmp_path):
    x, y = rows(None, 300, dtype=dtype), rows(300, 250, dtype=dtype, name="y")
    f = optree.function([x, y], [be.dot(x, y), be.dot(y.T, x.T)])
    library = Called(f, optree.export(f, tmp_path / "f"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((70, 300)).astype(dtype), rng.standard_normal((300, 250)).astype(dtype)]
    assert be.product.supports(*arrays)
    found = [np.empty((70, 250), dtype), np.empty((250, 70), dtype)]
    assert library([70], arrays, found) == 0
    for a, b in zip(f(*arrays), found, strict=True):
        assert a.get().tobytes() == b.tobytes()


CBLAS = """
#include <stdint.h>
enum { CblasRowMajor = 101, CblasNoTrans = 111, CblasTrans = 112 };
static void GEMM(int order, int tx, int ty, int m, int n, int k, T alpha, const T *x, int lx, const T *y, int ly,
                 T beta, T *out, int lo)
{
    (void)order, (void)beta;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            T sum = 0;
            for (int l = 0; l < k; l++)
                sum += x[tx == CblasTrans ? l * lx + i : i * lx + l] * y[ty == CblasTrans ? j * ly + l : l * ly + j];
            out[i * lo + j] = alpha * sum;
        }
}
"""


def test_sums_over_open_sizes(be, tmp_path):
    x = rows(None, 3, 19, 28)
    pooled, averages = be.max_pool(be.tanh(x), 5, stride=1, padding=2), be.avg_pool(x, 3, stride=2, padding=1)
    total = be.sum(pooled * pooled)  # Python divides the long ones among threads
    f = optree.function([x], [total, optree.grad(total, x), be.var(averages, axis=(0, 2, 3))])
    folder = optree.export(f, tmp_path / "f")
    library = Called(f, folder)
    for n in (1, 83):
        values = np.random.default_rng(n).standard_normal((n, 3, 19, 28)).astype("float32")
        expected = [y.get() for y in f(values)]
        found = [np.full_like(y, 77) for y in expected]
        assert library([n], [values], found) == 0
        for y, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-6)


def test_products_by_a_library(be, tmp_path):
    x, y = rows(None, 6), rows(6, 5, name="y")
    products = [
        be.dot(x, y),
        be.dot(y.T, x.T),
        be.dot(x, weights(be, 5, 6).T),
        be.dot(y[:, 1], x.T),
        be.dot(x[:, ::2], y[1::2]),
        be.dot(x[::-1], y[:, ::-1]),
        be.dot(np.broadcast_to(x[:1], (4, 6)), y),
    ]
    folder = optree.export(optree.function([x, y], products), tmp_path / "f")
    (folder / "cblas.h").write_text(CBLAS.replace("GEMM", "cblas_sgemm"))
    assert run(folder, (*PLAIN, "-DUSE_BLAS", f"-I{folder}")) == "0 values differ\n"


def test_wrong_sizes_pointers_and_scratch_are_told_by_codes(be, tmp_path):
    x = rows(None, 4)
    f = optree.function([x], be.dot(be.tanh(x), weights(be, 4, 4)))
    library = Called(f, optree.export(f, tmp_path / "f"))
    arrays, out = [np.ones((3, 4), "float32")], [np.full((3, 4), 7, "float32")]
    ok, wrong_size, null, small = range(4)
    for size in (0, -1, 1 << 40):
        assert library.scratch(ctypes.c_int64(size)) == -1
        assert library([size], arrays, out) == wrong_size
    assert library([3], [None], out) == library([3], arrays, [None]) == null
    assert library([3], arrays, out, scratch=library.scratch(ctypes.c_int64(3)) - 1) == small
    assert (out[0] == 7).all(), "nothing is written"
    assert library([3], arrays, out) == ok and (out[0] != 7).all()


@pytest.mark.parametrize("take", ["take", "embedding"])
def test_wrong_indices_are_told_by_a_code(be, take, tmp_path):
    x = rows(None, dtype="int64")
    f = optree.function([x], getattr(be, take)(weights(be, 5, 2), x, **({"axis": 0} if take == "take" else {})))
    library = Called(f, optree.export(f, tmp_path / "f"))
    for index, status in ((4, 0), (-5, 0 if take == "take" else 5), (5, 5), (-6, 5), (1 << 62, 5)):
        assert library([2], [np.array([0, index])], [np.empty((2, 2), "float32")]) == status


ARM = ["arm-linux-gnueabihf-gcc", "-static", "-mcpu=cortex-a7"], ["qemu-arm"]


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize(("compiler", "runner"), [(["clang", "-march=native"], []), ARM], ids=["clang", "arm"])
def test_other_compilers_and_processors(be, compiler, runner, tmp_path, monkeypatch):
    for command in (compiler[:1], runner):
        if command and not shutil.which(command[0]):
            pytest.skip(f"{command[0]} is not installed")
    x, y = rows(None, 2, 7, 6), rows(None, 3, name="y")
    values = [be.max_pool(be.tanh(x), 2), be.softmax(be.dot(y, weights(be, 3, 4)), axis=1), be.sum(x, axis=0)]
    values += [be.scan(lambda s, row: (s + row,) * 2, be.zeros((3,)), y)[1], be.sort(y, axis=0), x * 3.5]
    folder = optree.export(optree.function([x, y], values), tmp_path / "f")
    monkeypatch.setattr("test_export.GCC", compiler[0])
    program = compiled(folder, ("-O1", *compiler[1:]))
    done = subprocess.run([*runner, program], capture_output=True, text=True, cwd=folder)
    assert done.stdout == "0 values differ\n", done.stderr


SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize(
    ("case", "flags"),
    [
        *((case, SANITIZED) for case in (_convolutions, _reductions, _stacks, _loops, _indices)),
        (_mlp, ("-O3", "-DOPTREE_PORTABLE")),
        (_reductions, ("-O2", "-fopenmp", "-DOPTREE_THREADS=3")),
        (_stacks, ("-O0",)),
    ],
)
def test_it_runs_however_it_is_compiled(be, case, flags, tmp_path):
    inputs, outputs, updates = case(be)
    folder = optree.export(optree.function(inputs, outputs, updates=updates), tmp_path / "f")
    assert run(folder, flags) == "0 values differ\n"


def test_threads_share_large_kernels_and_products(be, tmp_path):
    x = rows(None, 1000)
    f = optree.function([x], [be.softmax(x, axis=1), be.sum(x, axis=0), be.dot(x, weights(be, 1000, 64))])
    example = [np.random.default_rng(0).standard_normal((40, 1000)).astype("float32")]
    folder = optree.export(f, tmp_path / "f", example=example)
    assert run(folder, ("-O2", "-fopenmp", "-DOPTREE_THREADS=3")) == "0 values differ\n"


def test_weights_in_a_file(be, tmp_path):
    inputs, outputs, updates = _training(be)
    f = optree.function(inputs, outputs, updates=updates)
    folder = optree.export(f, tmp_path / "f", weights="safetensors")
    _, arrays = safetensors.read(folder / "f.safetensors")
    assert sorted(arrays) == ["b", "w"]
    np.testing.assert_array_equal(arrays["w"], next(x for x, _ in f.updates if x.name == "w").get())
    program = compiled(folder, PLAIN)
    assert subprocess.run([program], cwd=folder).returncode == 0
    content = (folder / "f.safetensors").read_bytes()
    for wrong in (content[:-1], content.replace(b'"w"', b'"v"'), b""):
        (folder / "other").write_bytes(wrong)
        done = subprocess.run([program, "other"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 1 and done.stdout == "no weights\n"


def test_large_weights_are_in_a_file_unless_asked_otherwise(be, tmp_path):
    x = rows(None, 200)
    f = optree.function([x], be.dot(x, weights(be, 200, 100)), name="layer")
    assert (optree.export(f, tmp_path / "a") / "layer.safetensors").exists()
    assert not (optree.export(f, tmp_path / "b", weights="source", name="other") / "other.safetensors").exists()


REFUSED = {
    "gather": lambda be, x: x[be.array([0, 1], dtype="int64"), be.array([1, 0], dtype="int64")],
    "partition": lambda be, x: np.partition(x, 2, axis=1),
    "solve": lambda be, x: be.scan(lambda s, _: (be.solve(be.array(np.eye(4)), s), None), be.ones((4, 1)), x)[0],
    "take_blocks": lambda be, x: x + be.rand((1, 4)),
    "conv_weights": lambda be, x: optree.grad(
        be.sum(be.square(be.conv(be.reshape(x, (-1, 1, 4)), w := be.ones((2, 1, 3))))), w
    ),
    "float16": lambda be, x: x.astype("float16"),
    "matmul": lambda be, x: be.matmul(x.astype("int32"), be.array(np.eye(4), dtype="int32")),
}


@pytest.mark.parametrize("op", REFUSED)
def test_what_has_no_c_is_refused_by_name_and_line(be, op, tmp_path):
    x = rows(None, 4)
    f = optree.function([x], REFUSED[op](be, x))
    with pytest.raises(ExportError, match=rf"^export: .*{op}.*test_export.py:\d+"):
        optree.export(f, tmp_path / "f")
    assert not any(tmp_path.iterdir())


def test_a_folder_gets_all_or_nothing(be, tmp_path, monkeypatch):
    x = rows(None, 4)
    f = optree.function([x], be.tanh(x))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(ExportError, match="not an empty folder"):
        optree.export(f, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    assert len([*optree.export(f, tmp_path / "empty").iterdir()]) == 4
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *args: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        optree.export(f, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_exporting_changes_nothing(be, tmp_path):
    inputs, outputs, updates = _adam(be)
    f = optree.function(inputs, outputs, updates=updates)
    before = [target.get() for target, _ in f.updates]
    first, second = (optree.export(f, tmp_path / name, name="f") for name in ("a", "b"))
    for x, (target, _) in zip(before, f.updates, strict=True):
        np.testing.assert_array_equal(x, target.get())
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_slices_limit_the_open_sizes(be, tmp_path):
    x = rows(None, None)
    f = optree.function([x], [x[-3:, 5] * 2, x[:, :1000] + 1])
    library = Called(f, optree.export(f, tmp_path / "f"))
    text = (tmp_path / "f" / "f.h").read_text()
    assert "n0: the size of axis 0 of x, from 3 to" in text and "n1: the size of axis 1 of x, from 6 to 1000" in text
    for sizes, status in (((2, 6), 1), ((3, 5), 1), ((3, 1001), 1), ((3, 1000), 0), ((300, 6), 0)):
        array = np.ones(sizes, "float32")
        found = [np.empty(3, "float32"), np.empty((sizes[0], min(sizes[1], 1000)), "float32")]
        assert library(sizes, [array], found) == status
    x = rows(None, None, name="x")
    with pytest.raises(ExportError, match="depend on the open sizes|no polynomials"):
        optree.export(optree.function([x], x[:, ::2] + 1), tmp_path / "g")


def test_inputs_named_like_local_variables_of_c(be, tmp_path):
    named = [f"{name}{n}" for name in ("constant", "slice", "turn", "kernel_") for n in range(4)]
    named += ["words", "a", "take", "uint8_t", "class", "nullptr", "NULL", "printf"]
    inputs = [optree.TensorType("float32", (3,))(name) for name in named]
    states = be.scan(lambda s, x: (be.tanh(s + x), be.exp(s)), inputs[0].sum(), inputs[1])[1]
    total = sum(inputs[2:], states) + be.take(inputs[3], np.array([1, 0, 2]))
    assert run(optree.export(optree.function(inputs, total), tmp_path / "f")) == "0 values differ\n"


def test_sizes_that_must_be_equal_are_fixed(be, tmp_path):
    f = optree.function([x := rows(None, 5, 6), y := rows(None, 6, 2)], be.matmul(x, y))
    with pytest.raises(ExportError, match=r"matmul.*test_export.py:\d+.*do not broadcast; fix these sizes"):
        optree.export(f, tmp_path / "f")


def test_wrong_arguments(be, tmp_path):
    x = rows(None, 4)
    f = optree.function([x], be.tanh(x))
    with pytest.raises(optree.errors.OperandError, match="a function is wanted"):
        optree.export(be.tanh(be.ones(3)), tmp_path / "f")
    with pytest.raises(ExportError, match="target is one of c, cuda, not 'fortran'"):
        optree.export(f, tmp_path / "f", target="fortran")
    with pytest.raises(ExportError, match="no kernels"):
        optree.export(optree.function([x], be.tanh(x), mode="reference"), tmp_path / "f")


def test_it_needs_no_compiler_in_python(tmp_path):
    be = gen_backend("cpu", jit=False)
    inputs, outputs, _ = _mlp(be)
    assert run(optree.export(optree.function(inputs, outputs), tmp_path / "f")) == "0 values differ\n"


@pytest.mark.matrix(least=0)
@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
def test_the_cmake_file_builds_and_tests(be, tmp_path):
    inputs, outputs, _ = _mlp(be)
    folder = optree.export(optree.function(inputs, outputs), tmp_path / "f", weights="safetensors")
    for command in (["cmake", "-S", folder, "-B", tmp_path / "build"], ["cmake", "--build", tmp_path / "build"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(["ctest", "--test-dir", tmp_path / "build"], capture_output=True, text=True)
    assert "100% tests passed" in done.stdout, done.stdout
