"""The text of a PTX module as functions of basic blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from harness.ptx_values import TYPES, UnknownInstruction

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(
    r"(?:\.visible\s+|\.weak\s+)?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*\(([^)]*)\)([^{;]*)\{"
)
_POINTER = r"(?:\.ptr\s+(?:\.global\s+)?(?:\.align\s+\d+\s+)?)?"
_PARAMETER = re.compile(rf"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+{_POINTER}([\w$]+)(?:\[(\d+)\])?")
_VARIABLE = re.compile(r"\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
_STATEMENT = re.compile(r"(?:@(!?)([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,]+)")

#: Instructions at which threads wait for others; the last two for all of their warp.
SYNCHRONISING = ("bar", "barrier", "shfl", "vote", "match", "redux", "mma", "ldmatrix")


@dataclass
class Instruction:
    """An instruction: the register that guards it, its name, what modifies it, and its operands."""

    base: str
    mods: tuple[str, ...]
    operands: list[str]
    guard: str = ""
    negated: bool = False
    run: Callable[[Any], None] | None = None

    @cached_property
    def name(self) -> str:
        return ".".join((self.base, *self.mods))


@dataclass
class Block:
    """A basic block; one that synchronises is a single instruction."""

    instructions: list[Instruction] = field(default_factory=list)
    synchronises: bool = False


@dataclass
class Function:
    """A kernel or a function that kernels call.

    Attributes
    ----------
    parameters, results : list of (str, str, int)
        Name, type and bytes.
    registers : dict
        The dtype of each register, or of those that begin with a text and go on with a number.
    shared : dict
        Where each variable begins; `dynamic` is where dynamic shared memory does.
    """

    name: str
    parameters: list[tuple[str, str, int]]
    results: list[tuple[str, str, int]]
    blocks: list[Block] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, np.dtype] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    static: int = 0
    local_size: int = 0


@dataclass
class Module:
    """The declarations of a PTX module."""

    functions: dict[str, Function]
    constants: dict[str, np.ndarray]


def parse(text: str) -> Module:
    """The functions and constants of a module."""
    text = _COMMENT.sub("", text)
    module, rest, position = Module({}, {}), [], 0
    for found in _FUNCTION.finditer(text):
        if found.start() < position:
            continue
        rest.append(text[position : found.start()])
        end = _closing(text, found.end())
        module.functions[found[3]] = _function(found, text[found.end() : end])
        position = end + 1
    for statement in "".join([*rest, text[position:]]).split(";"):
        if variable := _VARIABLE.search(statement):
            _declare_constant(module, variable, statement)
    return module


def _closing(text: str, start: int) -> int:
    """Where the brace closes that was opened before a place."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return found.start()
    raise ValueError("a brace that nothing closes")


def _declare_constant(module: Module, variable: Any, statement: str) -> None:
    space, _, type, name, length = variable.groups()
    if space == "shared":  # dynamic: its length is the launch's
        module.constants[name] = np.zeros(0, np.uint8)
        return
    values = [int(number, 0) for number in re.findall(r"-?\w+", statement.partition("=")[2])]
    found = np.zeros(int(length or 1), TYPES[type])
    found[: len(values)] = values
    module.constants[name] = found


def _parameters(text: str | None) -> list[tuple[str, str, int]]:
    return [
        (name, type, int(length or 1) * TYPES[type].itemsize) for type, name, length in _PARAMETER.findall(text or "")
    ]


def _function(head: Any, body: str) -> Function:
    function = Function(head[3], _parameters(head[4]), _parameters(head[2]))
    block = Block()
    function.blocks.append(block)

    def begin() -> Block:
        if function.blocks[-1].instructions:
            function.blocks.append(Block())
        return function.blocks[-1]

    for statement in _statements(body):
        if statement.endswith(":"):
            block = begin()
            function.labels[statement[:-1]] = len(function.blocks) - 1
        elif statement.startswith("."):
            _declare(function, statement)
        else:
            instruction = _instruction(statement)
            if instruction.base in SYNCHRONISING:
                block = begin()
                block.synchronises = True
            block.instructions.append(instruction)
            if instruction.base in (*SYNCHRONISING, "bra", "ret", "exit", "call"):
                block = begin()
    return function


def _statements(body: str) -> list[str]:
    """Labels, declarations and instructions; braces of scopes are left out, those of vectors stay."""
    found, depth, text = [], 0, ""
    for piece in re.findall(r"[{};:\[\]]|[^{};:\[\]]+", body):
        if piece == "{" and not text.strip():
            continue
        if piece == "{":
            depth += 1
        elif piece == "}":
            if depth == 0:
                continue
            depth -= 1
        if piece == ";" or (piece == ":" and re.fullmatch(r"\s*[$\w]+\s*", text)):
            found.append(" ".join(text.split()) + (":" if piece == ":" else ""))
            text = ""
            continue
        text += piece
    return [each for each in found if each]


def _declare(function: Function, statement: str) -> None:
    if registers := _REGISTERS.match(statement):
        for name in registers[2].replace(" ", "").split(","):
            function.registers[name.partition("<")[0]] = TYPES[registers[1]]
    elif variable := _VARIABLE.match(statement):
        space, alignment, type, name, length = variable.groups()
        size, step = int(length or 1) * TYPES[type].itemsize, int(alignment or TYPES[type].itemsize)
        if space == "shared":
            start = -(-function.static // step) * step
            function.shared[name], function.static = start, start + size
        elif space == "local":
            start = -(-function.local_size // step) * step
            function.local[name], function.local_size = start, start + size


def _instruction(statement: str) -> Instruction:
    found = _STATEMENT.fullmatch(statement)
    if found is None:
        raise UnknownInstruction(statement)
    base, *mods = re.split(r"[.]|::", found[3])
    operands = [each.strip() for each in _OPERAND.findall(found[4])]
    return Instruction(base, tuple(mods), [each for each in operands if each], found[2] or "", bool(found[1]))
