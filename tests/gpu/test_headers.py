"""The constants, structures and functions of CUDA's libraries as the bindings have them, against NVIDIA's headers.

Each header comes with its library's wheel. g++ checks a source of static assertions.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from harness import fake_cublaslt
from harness.cuda import needs_gxx
from harness.nvrtc import folders

from backends.gpu import cublaslt, cudnn, cupy_device, launchers

pytestmark = needs_gxx

#: The letters of function parameters: pointers, integers of 4 bytes, and of 8 bytes with and without a sign.
KINDS = {ctypes.c_void_p: "P", ctypes.c_int: "I", ctypes.c_int64: "L", ctypes.c_uint64: "U", ctypes.c_size_t: "U"}

FUNCTIONS = """
#include <type_traits>
template <class T> constexpr char kind()
{
    return std::is_pointer_v<T> ? 'P' : sizeof(T) == 4 ? 'I' : std::is_signed_v<T> ? 'L' : 'U';
}
template <class R, class... A> constexpr bool takes(R (*)(A...), const char* wanted)
{
    const char found[] = {kind<A>()..., 0};
    for (int i = 0; i <= (int)sizeof...(A); ++i)
        if (found[i] != wanted[i]) return false;
    return true;
}
"""


def header(name: str, wheel: str) -> str:
    """The text of a header; where it is missing, or one that all include, the test is skipped."""
    found = {}
    for each, of in ((name, wheel), ("crt/host_defines.h", "nvidia-cuda-crt")):
        paths = [path for folder in folders() if (path := folder / "include" / each).exists()]
        if not paths:
            pytest.skip(f"{each} is not installed: pip install {of}")
        found[each] = paths[0].read_text()
    return found[name]


def check(includes: str, assertions: Mapping[str, Any]) -> None:
    """Compile static assertions: of expressions of C, each with its value; True is of a condition."""
    lines = [f"static_assert(({each}) == {int(value)});" for each, value in assertions.items()]
    text = "\n".join([*(f"#include <{name}>" for name in includes.split()), FUNCTIONS, *lines])
    with TemporaryDirectory() as own:
        target = Path(own) / "nv" / "target"  # of another wheel, for the arithmetic of halves
        target.parent.mkdir()
        target.write_text("#define NV_IF_TARGET(of, ...)\n#define NV_IF_ELSE_TARGET(of, yes, no) no\n")
        options = [f"-I{own}", *(f"-I{folder}/include" for folder in folders())]
        command = ["g++", "-std=c++17", "-fsyntax-only", "-w", *options, "-x", "c++", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_wrong_constant_is_found() -> None:
    header("cuda.h", "nvidia-cuda-runtime")
    check("cuda.h", {"CUDA_ERROR_OUT_OF_MEMORY": 2})
    for wrong in ({"CUDA_ERROR_OUT_OF_MEMORY": 3}, {'takes(cuDeviceGetCount, "I")': True}):
        with pytest.raises(AssertionError, match="static assertion failed"):
            check("cuda.h", wrong)


def test_the_driver_and_the_runtime() -> None:
    header("driver_types.h", "nvidia-cuda-runtime")
    refusals = {
        "CUDA_ERROR_INVALID_IMAGE": 200,
        "CUDA_ERROR_NO_BINARY_FOR_GPU": 209,
        "CUDA_ERROR_INVALID_PTX": 218,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": 222,
        "CUDA_ERROR_INVALID_SOURCE": 300,
        "CUDA_ERROR_NOT_FOUND": 500,
    }
    assert set(refusals.values()) == launchers.REFUSALS
    check(
        "cuda.h cuda_runtime_api.h",
        {
            **refusals,
            "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": launchers.SHARED_LIMIT,
            "CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT": launchers.SHARED_CARVEOUT,
            "CU_SHAREDMEM_CARVEOUT_MAX_SHARED": launchers.MAX_CARVEOUT,
            "cudaErrorMemoryAllocation": cupy_device.ALLOCATION_FAILED,
            "CUDA_ERROR_OUT_OF_MEMORY": cupy_device.ALLOCATION_FAILED,
            "cudaErrorInsufficientDriver": cupy_device.OLD_DRIVER,
            'takes(cuInit, "I")': True,
            'takes(cuDeviceGetCount, "P")': True,
        },
    )


def test_faults_are_those_after_which_a_process_must_end() -> None:
    text = header("driver_types.h", "nvidia-cuda-runtime")
    pieces = (piece.rpartition("*/") for piece in text.split("/**"))  # a comment, and what it is of
    named = ((said, re.match(r"\s*cudaError\w+\s*=\s*(\d+)", code)) for said, _, code in pieces)
    words = {int(found[1]): " ".join(said.replace("*", " ").split()) for said, found in named if found}
    assert len(words) > 100
    final = {number for number, said in words.items() if "process must be terminated" in said}
    assert final <= cupy_device.FAULTS
    check(
        "cuda_runtime_api.h",
        {"cudaErrorECCUncorrectable": 214, "cudaErrorNvlinkUncorrectable": 220, "cudaErrorUnknown": 999},
    )
    assert cupy_device.FAULTS - final == {214, 220, 999}, "a lost device, of which the header says less"


CUBLASLT = {
    "CUDA_R_32F": cublaslt._TYPES["float32"],
    "CUDA_R_64F": cublaslt._TYPES["float64"],
    "CUDA_C_32F": cublaslt._TYPES["complex64"],
    "CUDA_C_64F": cublaslt._TYPES["complex128"],
    "CUDA_R_16F": cublaslt._TYPES["float16"],
    "CUDA_R_16BF": cublaslt._TYPES["bfloat16"],
    "CUBLAS_COMPUTE_32F": cublaslt._IN_FLOAT32,
    "CUBLAS_COMPUTE_64F": cublaslt._IN_FLOAT64,
    "CUBLAS_COMPUTE_32F_FAST_TF32": cublaslt._IN_TF32,
    "CUBLAS_OP_N": cublaslt._PLAIN,
    "CUBLAS_OP_T": cublaslt._TRANSPOSED,
    "CUBLASLT_EPILOGUE_BIAS": cublaslt._WITH_BIAS,
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": cublaslt._IN_COMPUTE_TYPE,
    "CUBLAS_STATUS_SUCCESS": 0,
    "CUBLAS_STATUS_ALLOC_FAILED": cublaslt._NO_MEMORY,
    "CUBLAS_STATUS_NOT_SUPPORTED": cublaslt._NOT_SUPPORTED,
}

#: Attributes, by the kind of object that they are set of.
ATTRIBUTES = {
    "CUBLASLT_MATMUL_DESC_TRANSA": ("MatmulDesc", cublaslt._TRANSPOSE_A),
    "CUBLASLT_MATMUL_DESC_TRANSB": ("MatmulDesc", cublaslt._TRANSPOSE_B),
    "CUBLASLT_MATMUL_DESC_EPILOGUE": ("MatmulDesc", cublaslt._EPILOGUE),
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": ("MatmulDesc", cublaslt._BIAS_POINTER),
    "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": ("MatrixLayout", cublaslt._BATCH_COUNT),
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": ("MatrixLayout", cublaslt._BATCH_STRIDE),
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": ("MatmulPreference", cublaslt._MAX_WORKSPACE),
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": ("MatmulPreference", cublaslt._REDUCTIONS),
    **{
        f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{each}_BYTES": ("MatmulPreference", cublaslt._ALIGNMENT + place)
        for place, each in enumerate("ABCD")
    },
}


def test_cublaslt() -> None:
    text = header("cublasLt.h", "nvidia-cublas")
    struct, choice = "cublasLtMatmulHeuristicResult_t", cublaslt.Choice
    fields = zip("algo workspaceSize state wavesCount reserved".split(), choice._fields_, strict=True)
    functions = {name: arguments for name, arguments in cublaslt._FUNCTIONS.items() if name != "GetStatusName"}
    check(
        "cublasLt.h",
        {
            **CUBLASLT,
            **{name: attribute for name, (_, attribute) in ATTRIBUTES.items()},
            f"sizeof({struct})": ctypes.sizeof(choice),
            **{f"__builtin_offsetof({struct}, {name})": getattr(choice, mine[0]).offset for name, mine in fields},
            **{
                f'takes(cublasLt{name}, "{"".join(KINDS[each] for each in arguments)}")': True
                for name, arguments in functions.items()
            },
            'takes(cublasLtGetStatusName, "I")': True,
        },
    )
    for name, (kind, attribute) in ATTRIBUTES.items():
        given = fake_cublaslt.ATTRIBUTES[kind][attribute]
        said = text[: text.index(f"{name} = ")].rpartition("/**")[2]
        assert re.search(TYPES[given], said), f"{name} is said to be\n{said}"


#: The words of the header for what an attribute's buffer holds.
TYPES = {
    ctypes.c_int32: r"int32_t",
    ctypes.c_uint32: r"uint32_t",
    ctypes.c_int64: r"\bint64_t",
    ctypes.c_uint64: r"uint64_t",
    ctypes.c_void_p: r"const void \*",
}


def test_cudnn() -> None:
    header("cudnn_graph.h", "nvidia-cudnn-cu13")
    notes = {f"CUDNN_NUMERICAL_NOTE_{name}" for name in (*cudnn._REFUSED, *cudnn._REFUSED_FLOAT32)}
    types = {f"CUDNN_DATA_{name}" for name in cudnn._TYPES.values()}
    names = (*notes, *types, "CUDNN_HEUR_MODE_A", "CUDNN_HEUR_MODE_FALLBACK")
    check("cudnn_graph.h", {f"{name} >= 0": True for name in names})


@pytest.mark.skipif(find_spec("cudnn") is None, reason="pip install nvidia-cudnn-frontend")
def test_cudnns_front_end() -> None:
    try:
        frontend = import_module("cudnn")
    except Exception as error:
        pytest.skip(f"the front end does not load: {error}")
    for name in (*cudnn._REFUSED, *cudnn._REFUSED_FLOAT32):
        assert hasattr(frontend.numerical_note, name)
    for name in cudnn._TYPES.values():
        assert hasattr(frontend.data_type, name)
    assert hasattr(frontend.heur_mode, "A") and hasattr(frontend.heur_mode, "FALLBACK")
    operations = {name for name, _ in cudnn._OPERATIONS.values()}
    used = {*operations, "build_operation_graph", "create_execution_plans", "deselect_numeric_notes"}
    used |= {"check_support", "build_plans", "get_workspace_size", "execute", "validate"}
    assert used <= set(dir(frontend.pygraph))


def test_nccl() -> None:
    """CuPy's binding passes these numbers; there is no integer of 2 bytes, so `WIDER` replaces it."""
    text = header("nccl.h", "nvidia-nccl-cu13")
    types = "Int8 Uint8 Int32 Uint32 Int64 Uint64 Float16 Float32 Float64".split()
    found = {f"nccl{name}": number for number, name in enumerate(types)}
    check("nccl.h", {**found, **{f"nccl{name}": number for number, name in enumerate(("Sum", "Prod", "Max", "Min"))}})
    assert not re.search(r"ncclU?[Ii]nt16", text)
