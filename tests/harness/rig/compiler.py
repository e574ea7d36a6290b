"""NVRTC's functions, which compile CUDA's source by g++ for the CPU; an image is the source that it was made of."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from itertools import count
from typing import Any

from harness import cuda, nvrtc
from harness.rig.entry import TYPES, Refused, call, entries, put

#: The version that it says it is: no real one's, so that no cache takes an image for a real one.
VERSION = 13, 99

_MARK = b"CUDA-ON-CPU\0"

#: The line of a source that is compiled with ``-ftz=true``.
_FLUSHES = "#define CUDA_ON_CPU_FLUSHES"
_DOUBLE = re.compile(r"\bdouble\b")
_FAILED, _INVALID = 6, 4
_REFUSED, _NO_PROGRAM = map(ctypes.create_string_buffer, (b"NVRTC_ERROR_COMPILATION", b"NVRTC_ERROR_INVALID_PROGRAM"))


@dataclass
class Image:
    """A compiled source: the architecture that it is for, and the registers that its kernels take, where known."""

    arch: str
    source: str
    registers: dict[str, int] = field(default_factory=dict)

    @property
    def module(self) -> cuda.Module:
        """The source compiled by g++, once in a process."""
        return _module(self.source)

    @property
    def flushes(self) -> bool:
        """Whether its kernels flush subnormal float32; those with float64 do not: the processor flushes both."""
        return _FLUSHES in self.source and _DOUBLE.search(self.source) is None

    def bytes(self) -> bytes:
        """The image as a file has it."""
        registers = ",".join(f"{name}={many}" for name, many in self.registers.items())
        return _MARK + f"{self.arch}\n{registers}\n{self.source}".encode() + b"\0"

    @classmethod
    def at(cls, address: int) -> Image:
        """The image in memory; of other bytes, an error."""
        if ctypes.string_at(address, len(_MARK)) != _MARK:
            raise Refused(200, "no image that was made here")
        arch, registers, source = ctypes.string_at(address + len(_MARK)).decode().split("\n", 2)
        pairs = (each.split("=") for each in registers.split(",") if each)
        return cls(arch, source, {name: int(many) for name, many in pairs})


@dataclass
class Program:
    """A program of NVRTC's: its source, what it was compiled to, and what was said about it.

    Attributes
    ----------
    instances : dict
        The names of the kernels that instances of templates become, in memory.
    """

    source: str
    image: bytes = b""
    log: bytes = b"\0"
    instances: dict[str, Any] = field(default_factory=dict)


class Compiler:
    """NVRTC's functions by their names; where there are no devices, those of the real one, if it is installed.

    Parameters
    ----------
    is_on : callable
        Whether there are devices.

    Attributes
    ----------
    registers : dict
        How many registers kernels of some names are said to take.
    options : list of list of str
        Those of each compilation.
    programs : dict
        What was created and not destroyed.
    """

    def __init__(self, is_on: Callable[[], bool]) -> None:
        self._is_on = is_on
        #: The compute capabilities that it compiles for.
        self.capabilities: tuple[int, ...] = (90,)
        self.registers: dict[str, int] = {}
        self.options: list[list[str]] = []
        self.programs: dict[int, Program] = {}
        self._numbers = count(0x9A0000, 16)

    def entries(self) -> dict[str, Any]:
        """The functions as C's."""
        return entries(self, self._guarded)

    def _guarded(self, name: str, method: Any) -> Callable[..., Any]:
        @wraps(method)
        def guarded(*given: Any) -> Any:
            if not self._is_on():
                return self._real(name, method.takes, method.result, given)
            try:
                return method(*given) or 0
            except Refused as refused:
                return refused.status
            except KeyError:
                return _INVALID

        return guarded

    def _real(self, name: str, takes: str, result: Any, given: Sequence[Any]) -> int:
        """The result of the real NVRTC's function."""
        library = nvrtc.installed()
        if library is None:
            return _INVALID
        function = library[name]  # not the one that others have declared in their way
        function.argtypes, function.restype = [TYPES[each] for each in takes], result
        return int(function(*given))

    @call("I", result=ctypes.c_size_t)
    def nvrtcGetErrorString(self, status: int) -> int:
        return ctypes.addressof(_REFUSED if status == _FAILED else _NO_PROGRAM)

    @call("PP")
    def nvrtcVersion(self, major: int, minor: int) -> None:
        put(ctypes.c_int, major, VERSION[0])
        put(ctypes.c_int, minor, VERSION[1])

    @call("P")
    def nvrtcGetNumSupportedArchs(self, to: int) -> None:
        put(ctypes.c_int, to, len(self.capabilities))

    @call("P")
    def nvrtcGetSupportedArchs(self, to: int) -> None:
        for place, capability in enumerate(self.capabilities):
            put(ctypes.c_int, to + 4 * place, capability)

    @call("PPPIPP")
    def nvrtcCreateProgram(self, to: int, source: int, name: int, headers: int, texts: int, names: int) -> None:
        number = next(self._numbers)
        self.programs[number] = Program(ctypes.string_at(source).decode())
        put(ctypes.c_size_t, to, number)

    @call("P")
    def nvrtcDestroyProgram(self, to: int) -> None:
        del self.programs[ctypes.c_size_t.from_address(to).value]

    @call("PIP")
    def nvrtcCompileProgram(self, program: int, count: int, options: int) -> None:
        made = self.programs[program]
        texts = [ctypes.string_at(each).decode() for each in (ctypes.c_size_t * count).from_address(options)]
        given = " ".join(texts)
        self.options.append(texts)
        arch = re.search(r"(?:-arch|--gpu-architecture)=(\w+)", given)
        defines = [f"#define {' '.join(each[2:].split('=', 1))}" for each in texts if each.startswith("-D")]
        defines += [_FLUSHES] * any(each in ("-ftz=true", "--ftz=true") for each in texts)
        names = [cuda.instance(name.value.decode(), expression) for expression, name in made.instances.items()]
        image = Image(arch[1] if arch else "compute_75", "\n".join([*defines, made.source, *names]))
        try:
            image.registers = {name: self.registers[name] for name in image.module.kernels if name in self.registers}
        except cuda.CompileError as error:
            made.log = str(error).encode() + b"\0"
            raise Refused(_FAILED) from error
        made.image = image.bytes()

    @call("PP")
    def nvrtcAddNameExpression(self, program: int, expression: int) -> None:
        instances = self.programs[program].instances
        name = ctypes.create_string_buffer(b"instance_%d" % len(instances))
        instances[ctypes.string_at(expression).decode()] = name

    @call("PPP")
    def nvrtcGetLoweredName(self, program: int, expression: int, to: int) -> None:
        name = self.programs[program].instances[ctypes.string_at(expression).decode()]
        put(ctypes.c_size_t, to, ctypes.addressof(name))

    @call("PP")
    def nvrtcGetCUBINSize(self, program: int, to: int) -> None:
        put(ctypes.c_size_t, to, len(self.programs[program].image))

    @call("PP")
    def nvrtcGetCUBIN(self, program: int, to: int) -> None:
        image = self.programs[program].image
        ctypes.memmove(to, image, len(image))

    nvrtcGetPTXSize, nvrtcGetPTX = nvrtcGetCUBINSize, nvrtcGetCUBIN

    @call("PP")
    def nvrtcGetProgramLogSize(self, program: int, to: int) -> None:
        put(ctypes.c_size_t, to, len(self.programs[program].log))

    @call("PP")
    def nvrtcGetProgramLog(self, program: int, to: int) -> None:
        log = self.programs[program].log
        ctypes.memmove(to, log, len(log))


@cache
def _module(source: str) -> cuda.Module:
    return cuda.load([source])[0]
