"""PTX as NVRTC emits it, run in NumPy: all threads of some blocks at once, with masks where they diverge.

`harness.ptx_parser` reads a module; `Machine` runs blocks of a kernel on `Memory`. Of the threads that are not waiting,
those furthest behind go on first, so that warps reconverge where their paths meet, as they do on a device. Accesses
beyond an array, misaligned ones, and threads that wait for others that never come are a `PtxFault`; registers and
memory that nobody wrote are nan. Threads of a block take turns at barriers alone: races are what `harness.cuda` finds.

A run counts what warps issue: `Counts`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.ptx_memory import Memory, PtxFault, conflicts_of, distinct, sectors_of
from harness.ptx_parser import Function, Instruction, Module
from harness.ptx_values import TENSOR_CORES, TYPES, UnknownInstruction, function_of, product_of_warps

WARP = 32

#: The most basic blocks that a run takes.
LIMIT = 2_000_000


@dataclass
class Counts:
    """Counts of the instructions that the warps of a run issue.

    Attributes
    ----------
    issued : Counter
        How often warps issue an instruction, by its name.
    requests, sectors, bytes : Counter
        Of global memory, by ``'load'`` and ``'store'``: instructions of warps, sectors of 32 bytes that each takes, and
        bytes that threads ask for.
    passes, conflicts : int
        Of shared memory: how often a warp's access goes through its banks, and how often more than its size needs.
    """

    issued: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    sectors: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    passes: int = 0
    conflicts: int = 0


class Machine:
    """Blocks of one kernel's launch, and all of their threads.

    Parameters
    ----------
    module : Module
    name : str
        The kernel's.
    grid, block : (int, int), int
        The launch's blocks along x and y, and threads.
    words : sequence of int
        The arguments, 8 bytes each.
    memory : Memory
    shared : int
        Bytes of dynamic shared memory.
    blocks : sequence of int, optional
        The numbers of those that run, x first; all.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        grid: tuple[int, int],
        block: int,
        words: Sequence[int],
        memory: Memory,
        shared: int = 0,
        blocks: Sequence[int] | None = None,
    ) -> None:
        if block % WARP:
            raise PtxFault(f"{name}: blocks of {block} threads, where whole warps are wanted")
        self.module, self.memory, self.counts = module, memory, Counts()
        self.number = np.arange(grid[0] * grid[1]) if blocks is None else np.asarray(blocks)
        self.threads, self.count = block, block * len(self.number)
        self.all = np.ones(self.count, bool)
        self.group = np.repeat(np.arange(len(self.number)), block)
        self.lane = np.arange(self.count) % WARP
        thread, every = np.tile(np.arange(block, dtype=np.uint32), len(self.number)), np.repeat(self.number, block)
        self.special = {
            "%tid.x": thread, "%ntid.x": np.uint32(block), "%laneid": self.lane.astype(np.uint32),
            "%ctaid.x": (every % grid[0]).astype(np.uint32), "%ctaid.y": (every // grid[0]).astype(np.uint32),
            "%nctaid.x": np.uint32(grid[0]), "%nctaid.y": np.uint32(grid[1]), "WARP_SZ": np.uint32(WARP),
            **dict.fromkeys(("%tid.y", "%tid.z", "%ctaid.z"), np.uint32(0)),
            **dict.fromkeys(("%ntid.y", "%ntid.z", "%nctaid.z"), np.uint32(1)),
        }  # fmt: skip
        function = module.functions[name]
        if len(words) != len(function.parameters):
            raise PtxFault(f"{name} has {len(function.parameters)} parameters, and {len(words)} are given")
        self.dynamic = -(-function.static // 16) * 16
        size = self.dynamic + shared
        self.shared = np.full((len(self.number), -(-size // 16) * 16), 0xFF, np.uint8)  # of nans
        self.shared_size = size
        self.local = np.full((self.count, 256), 0xFF, np.uint8)
        #: The copies into shared memory that threads have not waited for, and the groups that each has committed.
        self.copies: list[tuple[Frame, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self.groups = np.zeros(self.count, np.int64)
        arguments = {}
        for (parameter, type, _), word in zip(function.parameters, words, strict=True):
            raw = int(word).to_bytes(8, "little", signed=word < 0)
            arguments[parameter, 0] = np.frombuffer(raw, TYPES[type], 1)[0]
        self.frame = Frame(self, function, arguments, 0)

    def run(self) -> Counts:
        """Run the blocks to their ends."""
        with np.errstate(all="ignore"):
            self.frame.run(self.all)
        return self.counts

    def advance(self, running: np.ndarray, left: int) -> None:
        """Commit the copies of some threads as a group, or wait for all of their groups but for some of the last."""
        if left < 0:
            self.groups += running
            return
        waiting = []
        for frame, addresses, lanes, values, groups in self.copies:
            done = running[lanes] & (groups + left < self.groups[lanes])
            if done.any():
                access(frame, "shared", addresses[done], lanes[done], values.dtype, values.shape[1], values[done])
            if not done.all():
                rest = ~done
                waiting.append((frame, addresses[rest], lanes[rest], values[rest], groups[rest]))
        self.copies = waiting


class _Registers(dict[str, np.ndarray]):
    """Registers of all threads; those that nobody wrote are nans, or have all bits."""

    def __init__(self, function: Function, count: int) -> None:
        super().__init__()
        self.function, self.count = function, count

    def __missing__(self, name: str) -> np.ndarray:
        dtype = register_dtype(name, self.function)
        found = self[name] = np.full(self.count * dtype.itemsize, 0xFF if dtype != np.bool_ else 0, np.uint8).view(
            dtype
        )
        return found


class Frame:
    """A function that threads are in: their registers, and where each of them is."""

    def __init__(self, machine: Machine, function: Function, arguments: dict[Any, Any], depth: int) -> None:
        self.machine, self.function, self.parameters, self.depth = machine, function, arguments, depth
        self.registers = _Registers(function, machine.count)
        self.carry = np.zeros(machine.count, np.uint64)
        self.mask: np.ndarray | None = None  # of the threads that run; None for all
        for block in function.blocks:
            for instruction in block.instructions:
                if instruction.run is None and instruction.base not in ("bra", "ret", "exit"):
                    instruction.run = bound(instruction, function)

    # Control

    def run(self, active: np.ndarray) -> None:
        blocks, end = self.function.blocks, len(self.function.blocks)
        self.place = np.where(active, 0, end)
        for _ in range(LIMIT):
            number, mask = self._next(end)
            if number == end:
                return
            self.mask = None if mask.all() else mask
            warps = int(mask.reshape(-1, WARP).any(axis=1).sum())
            after = np.full(self.place.shape, number + 1)
            for instruction in blocks[number].instructions:
                self.machine.counts.issued[instruction.name] += warps
                if instruction.run is not None:
                    instruction.run(self)
                else:
                    to = self.function.labels[instruction.operands[0]] if instruction.base == "bra" else end
                    after = np.where(self.guard(instruction), to, after)
            self.place = np.where(mask, after, self.place) if self.mask is not None else after
        raise PtxFault(f"{self.function.name} goes on after {LIMIT} basic blocks")

    def _next(self, end: int) -> tuple[int, np.ndarray]:
        """The first basic block with threads that need not wait, and those."""
        number = int(self.place.min())
        if number == end or not self.function.blocks[number].synchronises:
            return number, self.place == number
        for number in map(int, np.unique(self.place)):
            if number == end:
                break
            mask = self.place == number
            if self.function.blocks[number].synchronises:
                mask &= self._all_there(mask, self.function.blocks[number].instructions[0])
            if mask.any():
                return number, mask
        raise PtxFault(f"{self.function.name}: threads wait at a barrier or shuffle for others that never come")

    def _all_there(self, mask: np.ndarray, instruction: Instruction) -> np.ndarray:
        """The threads whose fellows have all come: of a block at a barrier, of a warp, as its mask says, elsewhere."""
        if instruction.base in ("bar", "barrier") and "warp" not in instruction.mods:
            size = self.machine.threads
            return np.repeat(mask.reshape(-1, size).all(axis=1), size)
        last = "0xffffffff" if instruction.base in ("mma", "ldmatrix") else instruction.operands[-1]
        wanted = np.broadcast_to(_getter(last, TYPES["u32"], self.function)(self), mask.shape)
        here = mask.reshape(-1, WARP) @ (np.uint64(1) << np.arange(WARP, dtype=np.uint64))
        here = np.repeat(here.astype(np.uint32), WARP)
        if np.any(mask & (wanted >> self.machine.lane.astype(np.uint32) & np.uint32(1) == 0)):
            raise PtxFault(f"{self.function.name}: a lane is not in the mask of its own {instruction.name}")
        return wanted & ~here == 0

    # Values

    def guard(self, instruction: Instruction) -> Any:
        """Which threads an instruction's guard lets run."""
        if not instruction.guard:
            return True
        found = self.registers[instruction.guard]
        return ~found if instruction.negated else found

    def running(self, instruction: Instruction) -> np.ndarray:
        """The threads that execute an instruction."""
        mask = self.machine.all if self.mask is None else self.mask
        return mask & self.guard(instruction) if instruction.guard else mask

    def write(self, name: str, value: Any, instruction: Instruction) -> None:
        """A register of the threads that execute an instruction."""
        if name == "_":
            return
        dtype = register_dtype(name, self.function)
        value = np.asarray(value)
        if value.dtype != dtype:
            is_as_wide = value.dtype.itemsize == dtype.itemsize
            value = (value if is_as_wide else value.astype(f"{value.dtype.kind}{dtype.itemsize}")).view(dtype)
        if self.mask is not None or instruction.guard:
            value = np.where(self.running(instruction), value, self.registers[name])
        elif not value.ndim:
            value = np.full(self.machine.count, value)
        self.registers[name] = value  # nobody writes into an array that is a register: others may be the same


def register_dtype(name: str, function: Function) -> np.dtype:
    """The dtype that a register is declared with."""
    found = function.registers.get(name)
    if found is None:
        found = function.registers[name] = function.registers[name.rstrip("0123456789")]
    return found


# Operands


def _getter(text: str, dtype: np.dtype, function: Function) -> Callable[[Frame], Any]:
    """A function that reads an operand as a dtype."""
    if text in function.registers or text.rstrip("0123456789") in function.registers:
        own = register_dtype(text, function)
        if own == dtype:
            return lambda frame: frame.registers[text]
        if own.itemsize == dtype.itemsize:
            return lambda frame: frame.registers[text].view(dtype)
        unsigned = np.dtype(f"u{own.itemsize}")
        return lambda frame: frame.registers[text].view(unsigned).astype(dtype)
    if text.startswith(("0f", "0d")):
        bits = np.array(int(text[2:], 16), np.uint32 if text[1] == "f" else np.uint64)
        value = bits.view(TYPES["f32" if text[1] == "f" else "f64"])[()]
        return lambda frame: value if value.dtype == dtype else bits.view(dtype)[()]
    if re.fullmatch(r"-?\d\w*", text):
        number = int(text.rstrip("U"), 0) % (1 << 8 * dtype.itemsize)
        constant = np.array(number, f"u{dtype.itemsize}").view(dtype)[()] if dtype != np.bool_ else np.bool_(number)
        return lambda frame: constant
    if text.startswith("%") and ("." in text or text == "%laneid"):
        return lambda frame: np.asarray(frame.machine.special[text]).view(dtype)
    if text == "WARP_SZ":
        return lambda frame: dtype.type(WARP)
    if text.startswith("!"):
        return lambda frame: ~frame.registers[text[1:]]
    return lambda frame: dtype.type(_address(text, frame))


def _address(name: str, frame: Frame) -> int:
    """Where a variable is, in its own space."""
    function, machine = frame.function, frame.machine
    if name in function.shared:
        return function.shared[name]
    if name in function.local:
        return frame.depth + function.local[name]
    constant = machine.module.constants[name]
    return machine.memory.address(constant) if constant.size else machine.dynamic


def _pointer(text: str, function: Function) -> Callable[[Frame], np.ndarray]:
    """A function that evaluates an address: a register or a variable, plus an offset."""
    found = re.fullmatch(r"\[\s*([\w%$.]+)\s*(?:\+\s*(-?\d+))?\s*\]", text)
    if found is None:
        raise UnknownInstruction(text)
    base, offset = found[1], int(found[2] or 0)
    size = register_dtype(base, function).itemsize if base.startswith("%") else 8
    read = _getter(base, np.dtype(f"i{size}"), function)

    def address(frame: Frame) -> np.ndarray:
        value = np.asarray(read(frame), np.int64) + offset
        return value if value.ndim else np.full(frame.machine.count, value)

    return address


def _vector(text: str) -> list[str]:
    return [each.strip() for each in text.strip("{}").split(",")] if text.startswith("{") else [text]


# Instructions bound to what they read


def bound(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """A function that executes an instruction in a frame."""
    base, mods, operands = instruction.base, instruction.mods, instruction.operands
    if base in ("ld", "st"):
        return (_loaded if base == "ld" else _stored)(instruction, function)
    if base == "shfl":
        return _shuffled(instruction, function)
    if base == "call":
        return _called(instruction)
    if base in ("bar", "barrier", "membar", "fence"):
        return lambda frame: None
    if base == "vote":
        return _voted(instruction, function)
    if base == "mma":
        return _multiplied(instruction, function)
    if base == "ldmatrix":
        return _matrices_loaded(instruction, function)
    if base == "cp":
        return _copied(instruction, function)
    if base in ("addc", "subc", "madc") or "cc" in mods:
        return _carried(instruction, function)
    if base == "cvta":
        base, mods = "mov", ("u64",)
    if base == "mov" and any(each.startswith("{") for each in operands):
        return _repacked(instruction, function)
    target, *sources = operands
    compute, dtypes = function_of(base, mods)
    dtypes = [*dtypes, *[dtypes[-1]] * len(sources)]
    reads = [_getter(text, dtype, function) for text, dtype in zip(sources, dtypes, strict=False) if dtype is not None]
    if base == "setp" and ("|" in target or len(sources) > 2):
        raise UnknownInstruction(f"{instruction.name} {operands}")

    def run(frame: Frame) -> None:
        frame.write(target, compute(*(read(frame) for read in reads)), instruction)

    return run


def _repacked(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """A move between a register and the parts of one."""
    target, source = map(_vector, instruction.operands)
    dtype = TYPES[instruction.mods[-1]]
    part = np.dtype(f"u{dtype.itemsize // max(len(target), len(source))}")
    reads = [_getter(text, part if len(source) > 1 else dtype, function) for text in source]

    def run(frame: Frame) -> None:
        values = [np.broadcast_to(read(frame), (frame.machine.count,)) for read in reads]
        if len(values) > 1:
            frame.write(target[0], np.stack(values, axis=1).reshape(-1).view(dtype), instruction)
        else:
            for place, name in enumerate(target):
                parts = np.ascontiguousarray(values[0]).view(part).reshape(-1, len(target))
                frame.write(name, parts[:, place].copy(), instruction)

    return run


def _carried(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """Sums, differences and products of 32 bits that read or write the carry."""
    base, mods = instruction.base.rstrip("c") if instruction.base != "sub" else "sub", instruction.mods
    target, *sources = instruction.operands
    dtype, wide = TYPES["u32"], np.uint64
    if TYPES[mods[-1]].itemsize != 4:
        raise UnknownInstruction(instruction.name)
    reads = [_getter(text, dtype, function) for text in sources]

    def run(frame: Frame) -> None:
        *factors, last = [np.asarray(read(frame)).astype(wide) for read in reads]
        first = factors[0] * factors[1] if base == "mad" else factors[0]
        if base == "mad":
            first = first >> wide(32) if "hi" in mods else first & wide(0xFFFFFFFF)
        carry = frame.carry if instruction.base.endswith("c") else wide(0)
        total = first - last - carry if base == "sub" else first + last + carry
        frame.write(target, (total & wide(0xFFFFFFFF)).astype(dtype), instruction)
        if "cc" in mods:
            found = np.broadcast_to(total >> wide(32) & wide(1), frame.carry.shape)
            frame.carry = np.where(frame.running(instruction), found, frame.carry)

    return run


def _shuffled(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    target, value, by, limits, _ = instruction.operands
    register, _, flag = target.partition("|")
    read, step, control = (_getter(text, TYPES["b32"], function) for text in (value, by, limits))
    mode = instruction.mods[1]

    def run(frame: Frame) -> None:
        lane = frame.machine.lane
        b, c = (np.asarray(each(frame)).astype(np.int64) for each in (step, control))
        b, clamp, segment = b & 31, c & 31, c >> 8 & 31
        last, first = (lane & segment) | (clamp & ~segment & 31), lane & segment
        if mode == "idx":
            source = first | (b & ~segment & 31)
        else:
            source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b}[mode]
        inside = source >= last if mode == "up" else source <= last
        source = np.where(inside, source, lane) + np.arange(frame.machine.count) // WARP * WARP
        running = frame.running(instruction)
        if not running[source[running]].all():
            raise PtxFault(f"{function.name}: a shuffle reads of a lane that does not take part")
        frame.write(register, np.broadcast_to(read(frame), running.shape)[source], instruction)
        if flag:
            frame.write(flag, inside, instruction)

    return run


def _voted(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """Whether a condition holds in any or in all lanes of a mask."""
    target, condition, _ = instruction.operands
    read, mode = _getter(condition, TYPES["pred"], function), instruction.mods[1]
    if mode not in ("any", "all"):
        raise UnknownInstruction(instruction.name)

    def run(frame: Frame) -> None:
        running = frame.running(instruction)
        holds = np.broadcast_to(read(frame), running.shape)
        found = running & (holds if mode == "any" else ~holds)
        any_lane = np.repeat(found.reshape(-1, WARP).any(axis=1), WARP)
        frame.write(target, any_lane if mode == "any" else ~any_lane, instruction)

    return run


def _called(instruction: Instruction) -> Callable[[Frame], None]:
    parts = [each.strip("() ").replace(",", " ").split() for each in instruction.operands]
    results, (name,), given = parts if len(parts) == 3 else ([], parts[0], parts[1] if len(parts) > 1 else [])

    def run(frame: Frame) -> None:
        function = frame.machine.module.functions[name]
        arguments = {}
        for formal, actual in zip(function.parameters, given, strict=True):
            arguments.update(((formal[0], at), v) for (owner, at), v in frame.parameters.items() if owner == actual)
        inner = Frame(frame.machine, function, arguments, frame.depth + -(-frame.function.local_size // 16) * 16)
        inner.run(frame.running(instruction))
        for formal, actual in zip(function.results, results, strict=True):
            found = {at: v for (owner, at), v in inner.parameters.items() if owner == formal[0]}
            frame.parameters.update(((actual, at), value) for at, value in found.items())

    return run


# Tiles


def _multiplied(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """A product of 16 rows with 8 columns of a warp's registers, added to others in float32."""
    shape, (kind, *_) = instruction.mods[2], instruction.mods[6:]
    depth, target = int(shape.rpartition("k")[2]), _vector(instruction.operands[0])
    left, right, added = (
        [_getter(text, TYPES["f32" if i == 2 else "b32"], function) for text in _vector(operand)]
        for i, operand in enumerate(instruction.operands[1:])
    )
    if instruction.mods[3:6] != ("row", "col", "f32") or (kind, depth) not in TENSOR_CORES:
        raise UnknownInstruction(instruction.name)

    def run(frame: Frame) -> None:
        def of_warps(reads: Sequence[Callable[[Frame], Any]]) -> np.ndarray:
            values = [np.broadcast_to(read(frame), (frame.machine.count,)) for read in reads]
            return np.stack(values, axis=1).reshape(-1, WARP, len(reads))

        for place, value in enumerate(product_of_warps(of_warps(left), of_warps(right), of_warps(added), kind)):
            frame.write(target[place], value.reshape(-1), instruction)

    return run


def _matrices_loaded(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """Matrices of 8 by 8 elements of 16 bits, whose rows are where a warp's lanes say."""
    targets, address = _vector(instruction.operands[0]), _pointer(instruction.operands[1], function)
    transposes, count = "trans" in instruction.mods, len(targets)

    def run(frame: Frame) -> None:
        running = frame.running(instruction).reshape(-1, WARP)
        lanes = np.flatnonzero(running & (np.arange(WARP) < 8 * count))
        rows = access(frame, "shared", address(frame)[lanes], lanes, TYPES["b16"], 8).reshape(-1, count, 8, 8)
        rows = rows.swapaxes(2, 3) if transposes else rows
        for place, name in enumerate(targets):
            value = np.zeros((len(running), WARP), np.uint32)
            value[running.any(axis=1)] = np.ascontiguousarray(rows[:, place]).reshape(-1, 64).view(np.uint32)
            frame.write(name, value.reshape(-1), instruction)

    return run


def _copied(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    """A copy from global to shared memory, which is there when its group is awaited, and not before."""
    if "commit_group" in instruction.mods or "wait_group" in instruction.mods:
        left = int(instruction.operands[0]) if instruction.operands else -1
        return lambda frame: frame.machine.advance(frame.running(instruction), left)
    to, origin = (_pointer(text, function) for text in instruction.operands[:2])
    size, word = int(instruction.operands[2]), TYPES["u32"]
    given = _getter(instruction.operands[-1], word, function)

    def run(frame: Frame) -> None:
        lanes = np.flatnonzero(frame.running(instruction))
        taken = np.broadcast_to(given(frame), (frame.machine.count,))[lanes]
        if np.any(~np.isin(taken, (0, size))):
            raise UnknownInstruction(f"{instruction.name} of a part of its bytes")
        values, read = np.zeros((len(lanes), size // 4), word), taken > 0
        if read.any():
            values[read] = access(frame, "global", origin(frame)[lanes[read]], lanes[read], word, size // 4)
        frame.machine.copies.append((frame, to(frame)[lanes], lanes, values, frame.machine.groups[lanes].copy()))

    return run


# Memory


def _of_parameter(text: str) -> tuple[str, int]:
    name, _, offset = text.strip("[] ").partition("+")
    return name, int(offset or 0)


def _space(instruction: Instruction) -> str:
    found = next((mod for mod in instruction.mods if mod in ("global", "shared", "local", "param", "const")), "")
    if not found:
        raise UnknownInstruction(f"{instruction.name}: of generic addresses")
    return "global" if found == "const" else found


def _loaded(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    targets, where = _vector(instruction.operands[0]), instruction.operands[1]
    dtype, space = TYPES[instruction.mods[-1]], _space(instruction)
    if space == "param":
        name = _of_parameter(where)

        def parameter(frame: Frame) -> None:
            value = np.asarray(frame.parameters[name])
            frame.write(targets[0], np.ascontiguousarray(value).view(dtype) if value.ndim else value[()], instruction)

        return parameter
    address = _pointer(where, function)

    def run(frame: Frame) -> None:
        running = frame.running(instruction)
        lanes = np.flatnonzero(running)
        if not lanes.size:
            return
        found = access(frame, space, address(frame)[lanes], lanes, dtype, len(targets))
        for place, name in enumerate(targets):
            value = np.zeros(running.shape, dtype)
            value[lanes] = found[:, place]
            frame.write(name, value, instruction)

    return run


def _stored(instruction: Instruction, function: Function) -> Callable[[Frame], None]:
    where, sources = instruction.operands[0], _vector(instruction.operands[1])
    dtype, space = TYPES[instruction.mods[-1]], _space(instruction)
    reads = [_getter(text, dtype, function) for text in sources]
    if space == "param":
        name = _of_parameter(where)

        def parameter(frame: Frame) -> None:
            value = np.broadcast_to(reads[0](frame), (frame.machine.count,))
            old = frame.parameters.get(name)
            new = value if old is None else np.where(frame.running(instruction), value, old)
            frame.parameters[name] = np.array(new)

        return parameter
    address = _pointer(where, function)

    def run(frame: Frame) -> None:
        running = frame.running(instruction)
        lanes = np.flatnonzero(running)
        if lanes.size:
            values = np.stack([np.broadcast_to(read(frame), running.shape)[lanes] for read in reads], axis=1)
            access(frame, space, address(frame)[lanes], lanes, dtype, len(sources), values)

    return run


def access(
    frame: Frame, space: str, addresses: np.ndarray, lanes: np.ndarray, dtype: np.dtype, width: int, values: Any = None
) -> np.ndarray:
    """Load from a state space, or store to it if values are given, and count the access."""
    machine, counts, size = frame.machine, frame.machine.counts, dtype.itemsize * width
    if np.any(addresses % size):
        raise PtxFault(f"{frame.function.name}: an access of {size} bytes that is misaligned")
    warps = lanes // WARP
    if space == "global":
        kind = "load" if values is None else "store"
        counts.requests[kind] += distinct(warps)
        counts.bytes[kind] += size * len(lanes)
        counts.sectors[kind] += sectors_of(addresses, warps)
        return (
            machine.memory.load(addresses, dtype, width) if values is None else machine.memory.store(addresses, values)
        )
    if space == "shared":
        passes, least = conflicts_of(addresses, lanes, size)
        counts.passes += passes
        counts.conflicts += passes - least
        bytes_, owners, limit = machine.shared, machine.group[lanes], machine.shared_size
    else:
        bytes_, owners, limit = machine.local, lanes, machine.local.shape[1]
    if np.any((addresses < 0) | (addresses + size > limit)):
        raise PtxFault(f"{frame.function.name}: an access beyond the {limit} bytes of {space} memory")
    typed = bytes_.view(dtype)
    index = (addresses // dtype.itemsize)[:, None] + np.arange(width)
    if values is not None:
        typed[owners[:, None], index] = values
        return values
    return typed[owners[:, None], index]
