"""Machine code of compute capability 7.5 to 10.x, by the pipe that executes each instruction.

An instruction has 16 bytes, of which the lowest nine bits name the operation, on all of these alike.
"""

from __future__ import annotations

import struct
from collections import Counter

#: The operations that our kernels have, by the pipe that they take: `float` and `integer` are as wide as a warp's share
#: of a multiprocessor or half of it, `slow` a quarter of that or less (functions, conversions), `double` as wide as the
#: card has it; `memory` is of global, local and shared memory and of shuffles, `uniform` of a warp's scalars.
PIPES = {
    "float": {"FMUL": 0x20, "FADD": 0x21, "FFMA": 0x23, "HADD2": 0x30, "HFMA2": 0x31, "HFMA2 ": 0x35,
              "IMAD": 0x24, "IMAD.WIDE": 0x25, "IMAD.HI": 0x27},
    "integer": {"MOV": 0x02, "P2R": 0x03, "R2P": 0x04, "CS2R": 0x05, "SEL": 0x07, "FSEL": 0x08, "FMNMX": 0x09,
                "FSET": 0x0A, "FSETP": 0x0B, "ISETP": 0x0C, "VIMNMX3": 0x0F, "IADD3": 0x10, "LEA": 0x11, "LOP3": 0x12,
                "IABS": 0x13, "PRMT": 0x16, "IMNMX": 0x17, "SHF": 0x19, "PLOP3": 0x1C, "VIADD": 0x36, "F2FP": 0x3E,
                "I2FP": 0x45, "VIADDMNMX": 0x46, "VIMNMX": 0x48},
    "double": {"DMUL": 0x28, "DADD": 0x29, "DSETP": 0x2A, "DFMA": 0x2B},
    "slow": {"FLO": 0x100, "FCHK": 0x102, "F2F": 0x104, "F2I": 0x105, "I2F": 0x106, "FRND": 0x107, "MUFU": 0x108,
             "POPC": 0x109, "F2F.64": 0x110, "F2I.64": 0x111, "I2F.64": 0x112, "FRND.64": 0x113},
    "memory": {"LDG": 0x181, "LDL": 0x183, "LDS": 0x184, "STG": 0x186, "STL": 0x187, "STS": 0x188, "SHFL": 0x189,
               "LDC": 0x182},
    "uniform": {"UMOV": 0x82, "VOTEU": 0x86, "USEL": 0x87, "UISETP": 0x8C, "UIADD3": 0x90, "ULEA": 0x91, "ULOP3": 0x92,
                "USHF": 0x99, "UIMAD": 0xA4, "UIMAD.WIDE": 0xA5, "ULDC": 0xB9, "R2UR": 0xCA, "LDCU": 0x1AC,
                "R2UR ": 0x1C2, "S2UR": 0x1C3, "UPLOP3": 0x9C},
    "control": {"S2R": 0x119, "DEPBAR": 0x11A, "BAR": 0x11D, "BSYNC": 0x141, "BREAK": 0x142, "CALL": 0x144,
                "BSSY": 0x145, "BRA": 0x147, "WARPSYNC": 0x148, "EXIT": 0x14D, "RET": 0x150, "BMOV": 0x155},
}  # fmt: skip

#: What fills up the end of a kernel.
NOP = 0x118

_PIPE_OF = {number: pipe for pipe, operations in PIPES.items() for number in operations.values()}


def pipes_of(cubin: bytes) -> dict[str, Counter[str]]:
    """Instruction counts of each kernel of an ELF file, by pipe; unknown instructions by opcode."""
    found = {}
    for name, code in _sections(cubin).items():
        if name.startswith(".text."):
            numbers = (word & 0x1FF for (word,) in struct.iter_unpack("<Q8x", code))
            found[name.removeprefix(".text.")] = Counter(
                _PIPE_OF.get(number, f"{number:#x}") for number in numbers if number != NOP
            )
    return found


def _sections(elf: bytes) -> dict[str, bytes]:
    """The sections of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + size * number) for number in range(count)]
    texts = elf[heads[names][4] :]
    return {texts[head[0] : texts.index(b"\0", head[0])].decode(): elf[head[4] : head[4] + head[5]] for head in heads}
