"""CUDA kernels on a device: compiled by NVRTC, cached on disk, loaded and launched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from backends.execution.compilations import Compilations, read, sha256, usable_folder, write
from backends.gpu.codegen.signatures import parameter_sizes
from backends.gpu.launch_config import CUDA12_CAPABILITIES, USE_CUDA12, DeviceLimits, Launch
from backends.gpu.launchers import ImageError, Launcher
from optree import settings
from optree.cache import Cache
from optree.errors import BackendError, CompilerError
from optree.locks import Locked

#: No contraction and no fast math, as for C, so that results are deterministic and follow IEEE 754.
OPTIONS = ("--std=c++17", "--fmad=false")

#: Maximum entries of the cache of loaded kernels.
LOADED = 1024


class Counts(Compilations):
    """The compilations for a device, and the number of launches."""

    launches = 0

    def counts(self) -> dict[str, Any]:
        return {**super().counts(), "launches": self.launches}


class KernelHost(Locked):
    """The host of the current device, which compiles, loads and launches kernels (`backends.gpu.kernel.Host`)."""

    def __init__(self, cupy: ModuleType, launcher: Launcher) -> None:
        super().__init__()
        device = cupy.cuda.Device()
        limits = device.attributes
        names = ("MultiProcessorCount", "MaxSharedMemoryPerBlockOptin", "MaxThreadsPerMultiProcessor")
        self.device = DeviceLimits(*(limits[name] for name in names))
        self.counts = Counts()
        self._cupy, self._launcher = cupy, launcher
        self.capability = int(device.compute_capability)
        self._target = target_of(device.compute_capability, cupy.cuda.nvrtc)
        self._holders: tuple[list[Any], ...] = ()
        self._loaded = Cache("loaded CUDA kernels", LOADED)
        #: By source, the image that was compiled ahead, and whether it is not from the disk.
        self._ahead = Cache("CUDA kernels compiled ahead", LOADED)

    def load(self, source: str, names: Sequence[str]) -> Sequence[Any]:
        """Compile and load a source; its kernels, by name.

        Raises CompilerError if NVRTC refuses the source, or the driver refuses the kernels.
        """
        with self.counts.once(source):
            loaded: dict[str, Any] | None = self._loaded.get(source)
            if loaded is not None:
                self.counts.count("hits")
                return [loaded[name] for name in names]
            image, is_new = self._ahead.pop(source, None) or self._image(source)
            try:
                kernels = self._launcher.load(image, names, source)
            except ImageError as error:
                if is_new:
                    raise self._not_loaded(error) from error
                kernels = self._recompiled(source, names)  # the cached image is damaged, or for another driver
            self._loaded[source] = dict(zip(names, kernels, strict=True))
            return kernels

    def load_ahead(self, sources: Iterable[str]) -> None:
        """Load sources, whose code takes memory; later calls of `load` report what fails otherwise."""
        for source in dict.fromkeys(sources):
            if source not in self._loaded:
                with suppress(CompilerError):
                    self.load(source, tuple(parameter_sizes(source)))

    def compile_ahead(self, sources: Iterable[str]) -> None:
        """Compile sources, several at a time, for later calls of `load`, which also report failures.

        NVRTC compiles in several threads in parallel, and CuPy calls it without the GIL.
        """
        new = [source for source in dict.fromkeys(sources) if source not in self._loaded]
        if len(new) > 1:
            jobs = [settings.carried(partial(self._compile_ahead, source)) for source in new]
            self.counts.concurrently(jobs)

    def _compile_ahead(self, source: str) -> None:
        with self.counts.once(source):
            if source not in self._loaded and source not in self._ahead:  # else another thread was first
                self._ahead[source] = self._image(source)

    def bound(self, kernel: object, launch: Launch, words: Sequence[int]) -> Callable[[], None]:
        """A function that launches a kernel on CuPy's current stream."""
        run = self._launcher.bound(kernel, (*launch.grid, 1), (launch.block, 1, 1), words, launch.shared)
        counts = self.counts

        def launched() -> None:
            counts.launches += 1
            for held in self._holders:
                held.append(kernel)
            run()

        return launched

    def scratch(self, size: int) -> tuple[int, Any]:
        """The address of scratch memory of a size in bytes, and its array."""
        memory = self._cupy.empty(size, np.uint8)
        return memory.data.ptr, memory

    @contextmanager
    def holding(self, held: list[Any]) -> Iterator[None]:
        """A block in which launched kernels are appended to a list: CUDA graphs hold no reference to their kernels."""
        with self.lock:
            self._holders = (*self._holders, held)
        try:
            yield
        finally:
            with self.lock:
                self._holders = tuple(each for each in self._holders if each is not held)

    def _recompiled(self, source: str, names: Sequence[str]) -> list[Any]:
        """The kernels of a source, compiled again; the new image replaces that on disk."""
        image, _ = self._image(source, is_cached=False)
        try:
            return self._launcher.load(image, names, source)
        except ImageError as error:
            raise self._not_loaded(error) from error

    def _not_loaded(self, error: ImageError) -> CompilerError:
        nvrtc, driven = self._cupy.cuda.nvrtc.getVersion(), self._cupy.cuda.runtime.driverGetVersion()
        return CompilerError(
            f"the driver, which is for CUDA {driven // 1000}.{driven % 1000 // 10}, refuses a kernel that NVRTC "
            f"{nvrtc[0]}.{nvrtc[1]} has compiled for {self._target} ({error}): install a newer driver, or CuPy and its "
            "libraries for that version"
        )

    def _image(self, source: str, is_cached: bool = True) -> tuple[bytes, bool]:
        """The compiled image of a source, from the disk cache or NVRTC, and whether it was compiled now."""
        if "source" in settings.value("show"):
            print(source, file=sys.stderr, flush=True)
        options = [f"--gpu-architecture={self._target}", *OPTIONS]
        version = ".".join(map(str, self._cupy.cuda.nvrtc.getVersion()))
        key = "cuda-" + sha256("\0".join([version, *options, source]).encode()).hexdigest()
        folder = usable_folder()
        cached = read(folder, key) if folder is not None and is_cached else None
        if cached is not None:
            self.counts.count("disk_hits")
            return cached, False
        with self.counts.timed():
            image = self._compiled(source, options)
        self.counts.count("misses")
        self.counts.announce(folder)
        if folder is not None:
            write(folder, key, image)
        return image, True

    def _compiled(self, source: str, options: Sequence[str]) -> bytes:
        nvrtc = self._cupy.cuda.nvrtc
        includes = [f"--include-path={folder}" for folder in _headers(source, self._cupy)]
        program = nvrtc.createProgram(source, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*options, *includes))
            made = nvrtc.getCUBIN(program) if self._target.startswith("sm_") else nvrtc.getPTX(program)
        except nvrtc.NVRTCError as error:
            said = nvrtc.getProgramLog(program)
            raise CompilerError(
                f"NVRTC {nvrtc.getVersion()} refuses a kernel for {self._target} ({error}); "
                f"OPTREE_SHOW=source prints kernels as they are made. It says:\n{said}"
            ) from error
        finally:
            nvrtc.destroyProgram(program)
        return made if isinstance(made, bytes) else made.encode()


def target_of(capability: str, nvrtc: ModuleType) -> str:
    """The target architecture: the device's, or a PTX version for the driver to compile if NVRTC is older.

    Raises BackendError if NVRTC no longer compiles for the device.
    """
    mine, supported = int(capability), nvrtc.getSupportedArchs()
    if mine in supported:
        return f"sm_{mine}"
    older = max((each for each in supported if each <= mine), default=None)
    if older is None:
        version, known = ".".join(map(str, nvrtc.getVersion())), ", ".join(map(str, supported))
        helps = f"; {USE_CUDA12}" if capability in CUDA12_CAPABILITIES else ""
        raise BackendError(
            f"the device has compute capability {capability[:-1]}.{capability[-1]}, and NVRTC {version} compiles for "
            f"{known}{helps}"
        )
    return f"compute_{older}"


def _headers(source: str, cupy: ModuleType) -> list[str]:
    """The include folders of CUDA's headers, if a source includes any."""
    if "#include" not in source:
        return []
    try:  # NVIDIA's finder, a dependency of CuPy
        found = import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    except ImportError:
        found = None
    root = cupy.cuda.get_cuda_path()
    if found is None and root is None:
        raise CompilerError(
            "kernels of float16 and bfloat16 need CUDA's headers, and none are found: "
            "pip install 'cupy-cuda13x[ctk]' installs them"
        )
    return [found or f"{root}/include"]
