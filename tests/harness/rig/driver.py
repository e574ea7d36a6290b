"""CUDA's runtime and driver as C functions over a simulated machine, with the rules by which they refuse calls."""

from __future__ import annotations

import ctypes
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from harness import cuda
from harness.device import ATTRIBUTES, DEFAULT, DYNAMIC, ERRORS, REGISTERS, may_ask, why_no_launch
from harness.rig.compiler import Image
from harness.rig.entry import Refused, call, entries, put
from harness.rig.machine import FREED, NEW, Event, Graph, Machine, Stream, fill

#: The versions that there are: of the driver, and the CUDA that it is for.
VERSION = 13990

#: `CUfunction_attribute`: threads, static bytes, registers.
_THREADS, _STATIC, _REGISTERS = 0, 1, 4

#: Calls that drop what there was do well without a driver.
_WITHOUT = re.compile("Destroy|Free|Unload|Error|Ctx[PD]")

#: The handle of the first device's context.
_CONTEXTS = 0xC000

#: `cudaMemPoolAttrReleaseThreshold`.
_THRESHOLD = 4

#: By words of the emulator's, what a device says of a kernel's fault; `cudaErrorLaunchFailure` of others.
FAULTS = {"misaligned": 716, "not there": 700, "goes on and on": 702}


@dataclass(eq=False)
class Module:
    """An image that a device has loaded, with its functions by name."""

    device: int
    image: Image
    functions: dict[str, int] = field(default_factory=dict)
    is_loaded: bool = True


@dataclass(eq=False)
class Function:
    """A kernel of a loaded image, with what was asked for it."""

    module: Module
    name: str
    asked: dict[int, int] = field(default_factory=dict)

    @property
    def kernel(self) -> cuda.Kernel:
        """Its entry in the library that was compiled."""
        return self.module.image.module.kernels[self.name]


class Driver:
    """CUDA's functions, by their names; each may raise `Refused`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        #: The last launches of kernels: name, grid, block, and bytes of dynamic shared memory.
        self.launches: deque[tuple[str, tuple[int, ...], tuple[int, ...], int]] = deque(maxlen=256)
        #: What each device answers that is no H100, and the CUDA that the driver is for.
        self.cards: dict[int, dict[int, int]] = {}
        self.version = VERSION
        #: The calls so far by name, and the copies to and from the host.
        self.calls: Counter[str] = Counter()
        self.to_host = self.to_device = 0
        #: The error with which a call of a name fails; 0 if it does not.
        self.refuses: Callable[[str], int] = lambda name: 0
        #: What runs in each thread at its first call.
        self.meets: Callable[[], None] | None = None
        self._threads = threading.local()
        self._names: dict[tuple[int, str], Any] = {}
        self._thresholds: dict[int, int] = {}

    def entries(self) -> dict[str, Any]:
        """The functions as C's."""
        return entries(self, self._guarded)

    def _guarded(self, name: str, function: Any) -> Callable[..., int]:
        machine = self.machine

        @wraps(function)
        def guarded(*given: Any) -> int:
            if machine.has_ended:  # Python ends, and CuPy drops what it has
                return 0
            if not machine.is_on and not _WITHOUT.search(name):
                return 35
            try:
                with machine.lock:
                    if self.meets is not None and not hasattr(self._threads, "met"):
                        self._threads.met = True
                        self.meets()
                    if not function.any_time:
                        self._check_context(name)
                    self.calls[name] += 1
                    return self.refuses(name) or function(*given) or self._broken(name, function)
            except Refused as refused:
                return refused.status
            except BaseException as error:  # a C function raises nothing
                machine.faults.append(f"{name}: {type(error).__name__}: {error}")
                return 999

        return guarded

    def _check_context(self, name: str) -> None:
        """The driver's functions want a context, which the runtime's make; a failed device answers nothing else."""
        machine = self.machine
        if name.startswith("cuda"):
            machine.context = machine.current
        elif machine.context is None:
            raise Refused(201, f"{name} in a thread without a context")
        if machine.device.broken:
            raise Refused(machine.device.broken)

    def _broken(self, name: str, function: Any) -> int:
        return 0 if function.any_time else self.machine.device.broken

    # Devices

    @call("P", any_time=True)
    def cudaDriverGetVersion(self, to: int) -> None:
        put(ctypes.c_int, to, self.version)

    @call("P", any_time=True)
    def cudaGetDevice(self, to: int) -> None:
        put(ctypes.c_int, to, self.machine.current)

    @call("P", any_time=True)
    def cudaGetDeviceCount(self, to: int) -> None:
        put(ctypes.c_int, to, len(self.machine.devices))

    @call("I", any_time=True)
    def cudaSetDevice(self, number: int) -> None:
        self._check_device(number)
        self.machine.current = self.machine.context = number

    @call("PII", any_time=True)
    def cudaDeviceGetAttribute(self, to: int, attribute: int, number: int) -> None:
        self._check_device(number)
        put(ctypes.c_int, to, self.attributes(number).get(attribute, 0))

    @call("PI", any_time=True)
    def cudaGetDeviceProperties(self, to: int, number: int) -> None:
        self._check_device(number)
        ctypes.memset(to, 0, 640)
        put(ctypes.c_char * 256, to, b"simulated device")
        put(ctypes.c_size_t, to + 288, self.machine.devices[number].memory.size)
        # Where the fields of `cudaDeviceProp` lie, by the numbers of the attributes of the same meaning.
        for at, attribute in {296: 8, 304: 12, 308: 10, 320: 1, 360: 75, 364: 76, 384: 16}.items():
            put(ctypes.c_int, to + at, self.attributes(number)[attribute])

    @call()
    def cudaDeviceSynchronize(self) -> None:
        for stream in self.machine.device.streams:
            self.machine.check_waits(stream)
        self.machine.finish_device(self.machine.device)

    @call("PII")
    def cudaDeviceCanAccessPeer(self, to: int, number: int, other: int) -> None:
        put(ctypes.c_int, to, 0)

    @call("PII")
    def cudaDeviceGetPCIBusId(self, to: int, size: int, number: int) -> None:
        put(ctypes.c_char * 16, to, b"0000:%02x:00.0" % number)

    def attributes(self, number: int) -> dict[int, int]:
        """The answers of a device, by the numbers of attributes."""
        return ATTRIBUTES | self.cards.get(number, {})

    def _check_device(self, number: int) -> None:
        if not 0 <= number < len(self.machine.devices):
            raise Refused(101)

    # Memory

    @call("PP")
    def cudaMemGetInfo(self, free: int, total: int) -> None:
        memory = self.machine.device.memory
        put(ctypes.c_size_t, free, memory.size - memory.used)
        put(ctypes.c_size_t, total, memory.size)

    @call("PZ")
    def cudaMalloc(self, to: int, size: int) -> None:
        self.machine.check_unsafe("cudaMalloc")
        put(ctypes.c_size_t, to, self.machine.device.memory.allocate(size) if size else 0)

    @call("P")
    def cudaFree(self, address: int) -> None:
        self.machine.check_unsafe("cudaFree")
        if address:
            device = self.machine.device_at(address)
            if device is None or address not in device.memory.live:
                raise Refused(1, "memory that is not there is freed")
            self.machine.finish_device(device)
            device.memory.free(address)

    @call("PZP")
    def cudaMallocAsync(self, to: int, size: int, stream: int) -> None:
        self._allocate_async(to, size, self.machine.stream(stream))

    @call("PZPP")
    def cudaMallocFromPoolAsync(self, to: int, size: int, pool: int, stream: int) -> None:
        self._allocate_async(to, size, self.machine.stream(stream))

    def _allocate_async(self, to: int, size: int, stream: Stream) -> None:
        """Memory that is full of NaNs when the stream comes to it; within a capture, each time that the graph does."""
        memory = self.machine.devices[stream.device].memory
        address = memory.allocate(size)
        if stream.capture is not None:
            self.machine.submit(stream, lambda: fill(address, memory.live[address], NEW), "memory of a graph's")
        put(ctypes.c_size_t, to, address)

    @call("PP")
    def cudaFreeAsync(self, address: int, handle: int) -> None:
        device, stream = self.machine.device_at(address), self.machine.stream(handle)
        if device is None or address not in device.memory.live:
            raise Refused(1, "memory that is not there is freed")
        memory = device.memory
        if stream.capture is not None:  # its addresses are the graph's
            self.machine.submit(stream, lambda: fill(address, memory.live[address], FREED), "memory of a graph's")
        else:
            self.machine.submit(stream, lambda: memory.free(address), "memory is freed")

    @call("PZU")
    def cudaHostAlloc(self, to: int, size: int, flags: int) -> None:
        self.machine.check_unsafe("cudaHostAlloc")
        put(ctypes.c_size_t, to, self.machine.pinned.allocate(size))

    @call("P")
    def cudaFreeHost(self, address: int) -> None:
        self.machine.check_unsafe("cudaFreeHost")
        if address not in self.machine.pinned.live:
            raise Refused(1, "pinned memory that is not there is freed")
        for device in self.machine.devices:
            self.machine.finish_device(device)
        self.machine.pinned.free(address)

    @call("PP")
    def cudaPointerGetAttributes(self, to: int, address: int) -> None:
        device, is_pinned = self.machine.device_at(address), address in self.machine.pinned
        ctypes.memset(to, 0, 24)
        put(ctypes.c_int, to, 2 if device is not None else 1 if is_pinned else 0)
        put(ctypes.c_int, to + 4, self.machine.current if device is None else device.number)
        put(ctypes.c_size_t, to + 8, 0 if device is None and not is_pinned else address)
        put(ctypes.c_size_t, to + 16, address if device is None else 0)

    @call("PPZI")
    def cudaMemcpy(self, to: int, source: int, size: int, kind: int) -> None:
        legacy = self.machine.device.legacy
        self.machine.check_unsafe("cudaMemcpy")
        self._copy(to, source, size, kind, legacy)
        if self._is_host(to) or self._is_host(source):
            self.machine.finish([legacy.last])

    @call("PPZIP")
    def cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self._copy(to, source, size, kind, self.machine.stream(stream))

    @call("PIPIZP")
    def cudaMemcpyPeerAsync(self, to: int, there: int, source: int, here: int, size: int, stream: int) -> None:
        self._copy(to, source, size, 3, self.machine.stream(stream))

    @call("PIPIZ")
    def cudaMemcpyPeer(self, to: int, there: int, source: int, here: int, size: int) -> None:
        self._copy(to, source, size, 3, self.machine.device.legacy)

    @call("PIZ")
    def cudaMemset(self, to: int, value: int, size: int) -> None:
        self._set(to, value, size, self.machine.device.legacy)

    @call("PIZP")
    def cudaMemsetAsync(self, to: int, value: int, size: int, stream: int) -> None:
        self._set(to, value, size, self.machine.stream(stream))

    def _copy(self, to: int, source: int, size: int, kind: int, stream: Stream) -> None:
        """A copy: into or out of memory that is not pinned, the host takes part."""
        machine = self.machine
        if not size:
            return
        hosts = self._is_host(source), self._is_host(to)
        if kind != 4 and hosts != (kind in (0, 1), kind in (0, 2)):
            raise Refused(21, "a copy in another direction")
        for address in (to, source):
            self._check_range(address, size)
        self.to_device += hosts[0]
        self.to_host += hosts[1]
        pageable = [
            is_host and address not in machine.pinned for address, is_host in zip((source, to), hosts, strict=True)
        ]
        if any(pageable) and stream.capture is not None:
            stream.capture.invalid = True
            raise Refused(900, "a copy of pageable memory is captured")
        if pageable[0]:
            kept = ctypes.string_at(source, size)
            machine.submit(stream, lambda: ctypes.memmove(to, kept, size) and None, "a copy from the host")
        else:
            devices = [each for each in map(machine.device_at, (to, source)) if each is not None]
            copy = partial(self._copy_now, to, source, size)
            if len(set(devices)) == 2 and stream in [device.legacy for device in machine.devices]:
                machine.between(copy, devices)
            else:
                machine.submit(stream, copy, "a copy")
        if pageable[1]:
            machine.finish([stream.last])

    def _copy_now(self, to: int, source: int, size: int) -> None:
        for address in (to, source):
            self._check_range(address, size)
        ctypes.memmove(to, source, size)

    def _set(self, to: int, value: int, size: int, stream: Stream) -> None:
        self._check_range(to, size)
        self.machine.submit(stream, lambda: ctypes.memset(to, value, size) and None, "a memset")

    def _is_host(self, address: int) -> bool:
        return self.machine.device_at(address) is None

    def _check_range(self, address: int, size: int) -> None:
        device = self.machine.device_at(address)
        region = device.memory if device is not None else self.machine.pinned
        if address in region and not region.holds(address, size):
            raise Refused(1, f"{size} bytes at {address:#x} are not there")

    # Pools of the stream-ordered allocator: there is one for each device, and it holds nothing back

    @call("PI")
    def cudaDeviceGetDefaultMemPool(self, to: int, number: int) -> None:
        put(ctypes.c_size_t, to, 0xB000 + number)

    @call("IP")
    def cudaDeviceSetMemPool(self, number: int, pool: int) -> None:
        pass

    @call("PI")
    def cudaDeviceGetMemPool(self, to: int, number: int) -> None:
        put(ctypes.c_size_t, to, 0xB000 + number)

    @call("PP")
    def cudaMemPoolCreate(self, to: int, properties: int) -> None:
        put(ctypes.c_size_t, to, 0xB000 + self.machine.current)

    @call("P")
    def cudaMemPoolDestroy(self, pool: int) -> None:
        pass

    @call("PIP")
    def cudaMemPoolSetAttribute(self, pool: int, attribute: int, value: int) -> None:
        if attribute == _THRESHOLD:
            self._thresholds[pool] = ctypes.c_uint64.from_address(value).value

    @call("PIP")
    def cudaMemPoolGetAttribute(self, pool: int, attribute: int, value: int) -> None:
        used = self.machine.devices[pool - 0xB000].memory.used
        put(ctypes.c_uint64, value, self._thresholds.get(pool, 0) if attribute == _THRESHOLD else used)

    @call("PZ")
    def cudaMemPoolTrimTo(self, pool: int, least: int) -> None:
        pass

    # Streams

    @call("P")
    def cudaStreamCreate(self, to: int) -> None:
        self._new_stream(to, 0)

    @call("PU")
    def cudaStreamCreateWithFlags(self, to: int, flags: int) -> None:
        self._new_stream(to, flags)

    @call("PUI")
    def cudaStreamCreateWithPriority(self, to: int, flags: int, priority: int) -> None:
        self._new_stream(to, flags)

    def _new_stream(self, to: int, flags: int) -> None:
        stream = Stream(self.machine.current, not flags & 1)
        self.machine.device.streams.append(stream)
        put(ctypes.c_size_t, to, self.machine.handle(stream))

    @call("P")
    def cudaStreamDestroy(self, handle: int) -> None:
        stream = self.machine.found(handle, Stream)
        device = self.machine.devices[stream.device]
        device.streams.remove(stream)
        device.detached += [work for work in (stream.last, *stream.waits) if work is not None and not work.done]
        del self.machine.handles[handle]

    @call("PP")
    def cudaStreamGetFlags(self, handle: int, to: int) -> None:
        put(ctypes.c_uint, to, int(not self.machine.stream(handle).blocking))

    @call("PP")
    def cudaStreamGetPriority(self, handle: int, to: int) -> None:
        put(ctypes.c_int, to, 0)

    @call("P")
    def cudaStreamSynchronize(self, handle: int) -> None:
        stream = self.machine.stream(handle)
        self.machine.check_waits(stream)
        # The legacy stream waits for blocking ones, and these for it.
        self.machine.finish([self.machine.submit(stream, None, "the host waits")])

    @call("P")
    def cudaStreamQuery(self, handle: int) -> int:
        stream = self.machine.stream(handle)
        self.machine.check_waits(stream)
        self.machine.go_on(8)
        return 0 if all(work is None or work.done for work in (stream.last, *stream.waits)) else 600

    @call("PPU")
    def cudaStreamWaitEvent(self, handle: int, event: int, flags: int) -> None:
        self.machine.wait(self.machine.stream(handle), self.machine.found(event, Event))

    @call("PPPU")
    def cudaStreamAddCallback(self, handle: int, function: int, data: int, flags: int) -> None:
        back = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t)(function)
        self.machine.submit(self.machine.stream(handle), lambda: back(handle, 0, data), "a callback")

    @call("PPP")
    def cudaLaunchHostFunc(self, handle: int, function: int, data: int) -> None:
        back = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(function)
        self.machine.submit(self.machine.stream(handle), lambda: back(data), "a function of the host's")

    # Events

    @call("P")
    def cudaEventCreate(self, to: int) -> None:
        put(ctypes.c_size_t, to, self.machine.handle(Event(self.machine.current, True)))

    @call("PU")
    def cudaEventCreateWithFlags(self, to: int, flags: int) -> None:
        put(ctypes.c_size_t, to, self.machine.handle(Event(self.machine.current, not flags & 2)))

    @call("P")
    def cudaEventDestroy(self, handle: int) -> None:
        self.machine.found(handle, Event)
        del self.machine.handles[handle]

    @call("PP")
    def cudaEventRecord(self, handle: int, stream: int) -> None:
        self.machine.record(self.machine.found(handle, Event), self.machine.stream(stream))

    @call("P")
    def cudaEventQuery(self, handle: int) -> int:
        event = self._uncaptured(handle)
        self.machine.go_on(8)
        return 0 if event.work is None or event.work.done else 600

    @call("P")
    def cudaEventSynchronize(self, handle: int) -> None:
        self.machine.finish([self._uncaptured(handle).work])

    @call("PPP")
    def cudaEventElapsedTime(self, to: int, first: int, last: int) -> int:
        events = [self._uncaptured(handle) for handle in (first, last)]
        if not all(event.timed and event.work is not None for event in events):
            raise Refused(400, "an event that has no time")
        if not all(event.work.done for event in events):
            return 600
        put(ctypes.c_float, to, (events[1].recorded - events[0].recorded) * 1e-3)
        return 0

    def _uncaptured(self, handle: int) -> Any:
        event = self.machine.found(handle, Event)
        if event.captured is not None:
            event.captured[0].invalid = True
            raise Refused(907, "an event that was recorded in a capture")
        return event

    # Captures and graphs

    @call("PI")
    def cudaStreamBeginCapture(self, handle: int, mode: int) -> None:
        self.machine.begin(handle, mode)

    @call("PP")
    def cudaStreamEndCapture(self, handle: int, to: int) -> None:
        put(ctypes.c_size_t, to, 0)
        put(ctypes.c_size_t, to, self.machine.handle(self.machine.end(handle)))

    @call("PP")
    def cudaStreamIsCapturing(self, handle: int, to: int) -> None:
        if handle in (0, 1):
            self.machine.check_implicit()
        capture = self.machine.stream(handle).capture
        put(ctypes.c_int, to, 0 if capture is None else 2 if capture.invalid else 1)

    @call("PPZ")
    def cudaGraphInstantiate(self, to: int, graph: int, flags: int) -> None:
        found = self.machine.found(graph, Graph)
        put(ctypes.c_size_t, to, self.machine.handle(Graph(found.device, found.nodes)))

    @call("PP")
    def cudaGraphUpload(self, graph: int, stream: int) -> None:
        self.machine.found(graph, Graph)

    @call("PP")
    def cudaGraphLaunch(self, graph: int, stream: int) -> None:
        found = self.machine.found(graph, Graph)
        for node in found.nodes:
            module = getattr(node.run, "module", None)
            if module is not None and not module.is_loaded:
                raise Refused(400, f"{node.what} of a graph was unloaded")
        self.machine.launch_graph(self.machine.stream(stream), found)

    @call("P")
    def cudaGraphDestroy(self, graph: int) -> None:
        self.machine.found(graph, Graph)
        del self.machine.handles[graph]

    @call("P")
    def cudaGraphExecDestroy(self, graph: int) -> None:
        self.machine.found(graph, Graph)
        del self.machine.handles[graph]  # one that runs is freed when it is done

    # Modules and kernels

    @call("U", any_time=True)
    def cuInit(self, flags: int) -> None:
        pass

    @call("P", any_time=True)
    def cuDeviceGetCount(self, to: int) -> None:
        put(ctypes.c_int, to, len(self.machine.devices))

    @call("P", any_time=True)
    def cuCtxGetCurrent(self, to: int) -> None:
        number = self.machine.context
        put(ctypes.c_size_t, to, 0 if number is None else _CONTEXTS + number)

    @call("P")
    def cuCtxGetDevice(self, to: int) -> None:
        put(ctypes.c_int, to, self.machine.context)

    @call("PP", any_time=True)
    def cuGetErrorName(self, status: int, to: int) -> None:
        self._say(status, to, f"CUDA_ERROR_{ERRORS.get(status, status)}")

    @call("PP", any_time=True)
    def cuGetErrorString(self, status: int, to: int) -> None:
        self._say(status, to, (self.machine.faults or ["a rule of the driver's"])[-1])

    def _say(self, status: int, to: int, text: str) -> None:
        kept = self._names.setdefault((status, text), ctypes.create_string_buffer(text.encode()))
        put(ctypes.c_size_t, to, ctypes.addressof(kept))

    @call("PP")
    def cuModuleLoadData(self, to: int, data: int) -> None:
        image = Image.at(data)
        card, (kind, number) = self.attributes(self.machine.current), image.arch.split("_")
        mine = 10 * card[75] + card[76]
        if int(number) != mine and not (kind == "compute" and int(number) < mine):  # the driver compiles PTX
            raise Refused(209, f"an image for {image.arch}")
        put(ctypes.c_size_t, to, self.machine.handle(Module(self.machine.current, image)))

    @call("P")
    def cuModuleUnload(self, handle: int) -> None:
        module = self.machine.found(handle, Module)
        module.is_loaded = False
        for function in (handle, *module.functions.values()):
            del self.machine.handles[function]

    @call("PPP")
    def cuModuleGetFunction(self, to: int, handle: int, name: int) -> None:
        module, text = self.machine.found(handle, Module), ctypes.string_at(name).decode()
        if text not in module.image.module.kernels:
            raise Refused(500, f"no kernel {text}")
        if text not in module.functions:
            module.functions[text] = self.machine.handle(Function(module, text))
        put(ctypes.c_size_t, to, module.functions[text])

    @call("PIP")
    def cuFuncGetAttribute(self, to: int, attribute: int, handle: int) -> None:
        function = self.machine.found(handle, Function)
        kernel = function.kernel
        known = {_THREADS: kernel.most_threads, _STATIC: kernel.static, _REGISTERS: self._registers(function)}
        put(ctypes.c_int, to, {**known, **function.asked}.get(attribute, 0))

    @call("PII")
    def cuFuncSetAttribute(self, handle: int, attribute: int, value: int) -> None:
        function = self.machine.found(handle, Function)
        if not may_ask(attribute, value, function.kernel.static):
            raise Refused(1, f"attribute {attribute} of {function.name} cannot be {value}")
        function.asked[attribute] = value

    @call("PUUUUUUUPPP")
    def cuLaunchKernel(self, handle: int, *given: int) -> None:
        function = self.machine.found(handle, Function)
        grid, block, (shared, stream, words, extra) = given[:3], given[3:6], given[6:]
        where = self.machine.stream(stream)
        if where.device != function.module.device or self.machine.context != where.device:
            raise Refused(400, f"{function.name} is launched on another device's stream")
        self._check_launch(function, grid, block, shared)
        self.launches.append((function.name, grid, block, shared))
        work = self._run_of(function, grid, block, shared, _addresses(function.kernel, words, extra))
        self.machine.submit(where, work, function.name)

    def _check_launch(self, function: Function, grid: Any, block: Any, shared: int) -> None:
        name, kernel, threads = function.name, function.kernel, block[0] * block[1] * block[2]
        if reason := why_no_launch(grid, block, kernel.most_threads):
            raise Refused(1, f"{name}: {reason}")
        if shared > function.asked.get(DYNAMIC, DEFAULT - kernel.static):
            raise Refused(1, f"{name}: {shared} bytes of shared memory beside {kernel.static}")
        # Registers are given to warps, 256 at a time.
        if -(-self._registers(function) * 32 // 256) * 256 * -(-threads // 32) > REGISTERS:
            raise Refused(701, f"{name}: {threads} threads of {self._registers(function)} registers")

    def _registers(self, function: Function) -> int:
        return function.module.image.registers.get(function.name, 32)

    def _run_of(
        self, function: Function, grid: Any, block: Any, shared: int, addresses: Sequence[int]
    ) -> Callable[[], None]:
        """The work of a launch, with a copy of its arguments."""
        kernel, machine, number = function.kernel, self.machine, function.module.device
        packed = cuda.Packed()
        for argument, address in zip(kernel.arguments, addresses, strict=True):
            packed.values += bytes(-len(packed.values) % 16)
            packed.offsets.append(len(packed.values))
            packed.values += ctypes.string_at(address, argument.size)
        order, seed = machine.random.choice(cuda.ORDERS), machine.random.randrange(1 << 30)
        image = function.module.image
        is_strict = "<cupy/" not in image.source  # some of CuPy's kernels end threads before barriers

        def run() -> None:
            try:
                self._check_pointers(function.name, packed.values, number)
                launch = grid, block, shared
                image.module.launch_packed(function.name, launch, packed, order, seed, is_strict, image.flushes)
            except cuda.KernelFault as fault:
                status = next((status for words, status in FAULTS.items() if words in str(fault)), 719)
                machine.fail(number, status, str(fault))

        run.module = function.module  # type: ignore[attr-defined]
        return run

    def _check_pointers(self, name: str, values: bytearray, number: int) -> None:
        """A kernel reaches its own device's memory, and the host's that is pinned."""
        for address in memoryview(bytes(values[: len(values) // 8 * 8])).cast("Q"):
            device = self.machine.device_at(address)
            if device is not None and device.number != number:
                raise cuda.KernelFault(f"{name}: an access to memory that is not there, but on another device")

    # What only PyCUDA calls: contexts, and the runtime's functions by the driver's names

    @call("PI", any_time=True)
    def cuDeviceGet(self, to: int, number: int) -> None:
        self._check_device(number)
        put(ctypes.c_int, to, number)

    @call("PI", any_time=True)
    def cuDevicePrimaryCtxRetain(self, to: int, number: int) -> None:
        self._check_device(number)
        put(ctypes.c_size_t, to, _CONTEXTS + number)

    @call("I", any_time=True)
    def cuDevicePrimaryCtxRelease_v2(self, number: int) -> None:
        pass

    @call("P", any_time=True)
    def cuCtxPushCurrent_v2(self, context: int) -> None:
        self._check_device(context - _CONTEXTS)
        self.machine.push(context - _CONTEXTS)

    @call("P", any_time=True)
    def cuCtxPopCurrent_v2(self, to: int) -> None:
        put(ctypes.c_size_t, to, _CONTEXTS + self.machine.pop())

    @call("PII", any_time=True)
    def cuDeviceGetName(self, to: int, size: int, number: int) -> None:
        put(ctypes.c_char * 17, to, b"simulated device")

    @call("PIII")
    def cuFuncSetBlockShape(self, handle: int, *block: int) -> None:
        self.machine.found(handle, Function)

    @call("P")
    def cuCtxDetach(self, context: int) -> None:
        self.machine.pop()

    @call("PPI", any_time=True)
    def cuDeviceComputeCapability(self, major: int, minor: int, number: int) -> None:
        for to, attribute in ((major, 75), (minor, 76)):
            put(ctypes.c_int, to, self.attributes(number)[attribute])

    @call("PPUPP")
    def cuModuleLoadDataEx(self, to: int, data: int, count: int, options: int, values: int) -> None:
        self.cuModuleLoadData(to, data)

    @call("PPZ")
    def cuMemcpyHtoD_v2(self, to: int, source: int, size: int) -> None:
        self.cudaMemcpy(to, source, size, 1)

    @call("PPZ")
    def cuMemcpyDtoH_v2(self, to: int, source: int, size: int) -> None:
        self.cudaMemcpy(to, source, size, 2)

    @call("PPZP")
    def cuMemcpyHtoDAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        self.cudaMemcpyAsync(to, source, size, 1, stream)

    @call("PPZP")
    def cuMemcpyDtoHAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        self.cudaMemcpyAsync(to, source, size, 2, stream)

    cuDeviceGetAttribute, cuDriverGetVersion = cudaDeviceGetAttribute, cudaDriverGetVersion
    cuCtxSynchronize, cuMemAlloc_v2, cuMemFree_v2 = cudaDeviceSynchronize, cudaMalloc, cudaFree
    cuMemHostAlloc, cuMemFreeHost = cudaHostAlloc, cudaFreeHost
    cuStreamCreate, cuStreamDestroy_v2 = cudaStreamCreateWithFlags, cudaStreamDestroy
    cuStreamSynchronize, cuStreamWaitEvent = cudaStreamSynchronize, cudaStreamWaitEvent
    cuEventCreate, cuEventDestroy_v2 = cudaEventCreateWithFlags, cudaEventDestroy
    cuEventRecord, cuEventSynchronize = cudaEventRecord, cudaEventSynchronize


def _addresses(kernel: cuda.Kernel, words: int, extra: int) -> list[int]:
    """The address of each argument: an array has them, or a buffer the arguments, at the parameters' offsets."""
    if words or not kernel.arguments:
        return list((ctypes.c_size_t * len(kernel.arguments)).from_address(words))
    _, buffer, _, size, _ = (ctypes.c_size_t * 5).from_address(extra)
    found, end = [], buffer
    for argument in kernel.arguments:
        found.append(end + -(end - buffer) % argument.size)
        end = found[-1] + argument.size
    if end - buffer != ctypes.c_size_t.from_address(size).value:
        raise Refused(1, f"{kernel.name}: the buffer of its arguments has another size than {end - buffer}")
    return found
