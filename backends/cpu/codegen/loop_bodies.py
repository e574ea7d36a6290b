"""C source of a loop's step as one function: small kernels are inlined, for sizes that the compiler knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backends.cpu.codegen.printer import file_of, parts_of
from backends.execution.printer_common import Lines, braced
from optree.compile.loopnest import LoopNest
from optree.records import NamedTuple

#: The names that the text of a kernel defines for itself.
OWN_NAMES = re.compile(r"^(?:static |struct |void )[^;=]*?(\w+)(?:\((?!\().*)?$|\b(join\d+)\b", re.MULTILINE)

#: A number among the words. Where GCC sees both the words and the kernel, it must not be read as of another type.
NUMBER = re.compile(r"\*\(const (\w+) \*\)\(a \+ (\d+)\)")


class BodyCall(NamedTuple):
    """A call of a step, of words that are numbers and addresses."""

    #: The number of its first word.
    first: int
    #: C expressions.
    words: Sequence[str]
    #: Of a kernel that is inlined.
    nest: LoopNest | None
    #: Whether its loops are unrolled.
    is_tiny: bool = False
    #: The bytes of a copy that is inlined, from the address in its second word to that in its first.
    copied: int = 0


def body_source(calls: Sequence[BodyCall], declared: Lines) -> str:
    """The text of `body` for loops.c.

    `declared`: the declarations of what words are expressions of.
    """
    inlined = list(dict.fromkeys((call.nest, call.is_tiny) for call in calls if call.nest is not None))
    nests = [nest for nest, _ in inlined if nest is not None]
    kernels = [
        _renamed(parts_of(nest), n, is_tiny) for n, (nest, (_, is_tiny)) in enumerate(zip(nests, inlined, strict=True))
    ]
    lines = ["const call *const calls = (const call *)p->calls;", *declared]
    for number, (first, words, nest, is_tiny, copied) in enumerate(calls):
        if nest is not None:
            lines += braced(
                [f"const word a[] = {{{', '.join(words)}}};", f"kernel_{inlined.index((nest, is_tiny))}(a);"]
            )
            continue
        if copied:
            lines.append(f"memcpy((void *)({words[0]}), (const void *)({words[1]}), {copied});")
            continue
        lines += [f"w[{n}] = {word};" for n, word in enumerate(words, first) if word != f"w[{n}]"]
        lines.append(f"((void (*)(const word *))calls[{number}].function)(w + {first});")
    step = "static inline __attribute__((flatten)) void body(const loop *p, const rows *all, word step, word *w)"
    return file_of(nests, "\n".join([*kernels, step, *braced(lines)]))


def _renamed(text: str, number: int, is_tiny: bool) -> str:
    """The text of a kernel, whose own names end in its number."""
    names = {a or b for a, b in OWN_NAMES.findall(text)}
    text = re.sub(rf"\b({'|'.join(sorted(names))})\b", rf"\1_{number}", text)
    text = NUMBER.sub(r"(union { word bits; \1 value; }){a[\2]}.value", text)
    if is_tiny:  # GCC unrolls no loop that it is to vectorise
        text = re.sub(r"^ *#pragma omp simd.*\n", "", text, flags=re.MULTILINE)
    return re.sub(rf"^void kernel_{number}\b", f"static void kernel_{number}", text, flags=re.MULTILINE)
