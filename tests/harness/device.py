"""The device that every double describes, an H100: its attributes, what it refuses to launch, and its errors."""

from __future__ import annotations

from collections.abc import Sequence

from backends.gpu.launch_config import DEVICES

_LIMITS = DEVICES["sm_90"]

#: `cudaDeviceAttr`, and the answers; 0 for what is not here.
ATTRIBUTES = {
    1: 1024,  # MaxThreadsPerBlock
    2: 1024,  # MaxBlockDimX
    3: 1024,  # MaxBlockDimY
    4: 64,  # MaxBlockDimZ
    5: 2**31 - 1,  # MaxGridDimX
    6: 65535,  # MaxGridDimY
    7: 65535,  # MaxGridDimZ
    8: 48 << 10,  # MaxSharedMemoryPerBlock
    10: 32,  # WarpSize
    12: 65536,  # MaxRegistersPerBlock
    16: _LIMITS.multiprocessors,  # MultiProcessorCount
    31: 1,  # ConcurrentKernels
    38: 50 << 20,  # L2CacheSize
    39: _LIMITS.threads,  # MaxThreadsPerMultiProcessor
    41: 1,  # UnifiedAddressing
    75: 9,  # ComputeCapabilityMajor
    76: 0,  # ComputeCapabilityMinor
    81: 228 << 10,  # MaxSharedMemoryPerMultiprocessor
    82: 65536,  # MaxRegistersPerMultiprocessor
    97: _LIMITS.shared,  # MaxSharedMemoryPerBlockOptin
    106: 32,  # MaxBlocksPerMultiprocessor
    111: 1024,  # ReservedSharedMemoryPerBlock
    115: 1,  # MemoryPoolsSupported
}

#: A block's shared memory, static and dynamic together, where a kernel has not asked for more, and what it may ask for.
DEFAULT, OPTIN = ATTRIBUTES[8], ATTRIBUTES[97]

REGISTERS = ATTRIBUTES[12]
_EXTENTS = {"grid": [ATTRIBUTES[n] for n in (5, 6, 7)], "block": [ATTRIBUTES[n] for n in (2, 3, 4)]}

#: `CUfunction_attribute`: the limit of dynamic shared memory, and the percentage of the cache that is shared memory.
DYNAMIC, CARVEOUT = 8, 9

#: CUDA allocates memory in pieces of so many bytes.
PIECE = 512

#: The names of the driver's errors.
ERRORS = {
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT",
    209: "NO_BINARY_FOR_GPU",
    400: "INVALID_HANDLE",
    500: "NOT_FOUND",
    700: "ILLEGAL_ADDRESS",
    701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT",
    716: "MISALIGNED_ADDRESS",
    719: "LAUNCH_FAILED",
    900: "STREAM_CAPTURE_UNSUPPORTED",
    901: "STREAM_CAPTURE_INVALIDATED",
}


def may_ask(attribute: int, value: int, static: int) -> bool:
    """Whether `cuFuncSetAttribute` takes a value for a kernel with so many bytes of static shared memory."""
    return {DYNAMIC: 0 <= value <= OPTIN - static, CARVEOUT: -1 <= value <= 100}.get(attribute, False)


def why_no_launch(grid: Sequence[int], block: Sequence[int], most_threads: int) -> str | None:
    """Why a grid of blocks is not launched, for a kernel that is compiled for so many threads; None where it is."""
    for (what, limits), given in zip(_EXTENTS.items(), (grid, block), strict=True):
        if not all(1 <= size <= limit for size, limit in zip(given, limits, strict=True)):
            return f"a {what} of {tuple(given)}: at least 1, and at most {tuple(limits)}"
    threads, most = block[0] * block[1] * block[2], min(most_threads, ATTRIBUTES[1])
    return f"{threads} threads in a block, where it is compiled for {most}" if threads > most else None
