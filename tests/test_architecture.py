"""The packages, in order, and the sizes that keep each function to a screen and each file to one idea.

An import points down, to a package before its own; so a file can be read knowing
only those before it. See "Ten rules", 5.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backends import lazy
from optree.registry import OPS
from optree.tree import variable

ROOT = Path(__file__).resolve().parent.parent

#: Packages and modules from the bottom up. Each imports those before it, and within a package without a circle.
PACKAGES = (
    *(
        "optree.installation",
        "optree.records",
        "optree.errors",
        "optree.settings",
        "optree.cache",
        "optree.locks",
        "optree.arrays",
        "optree.instead",
    ),
    *("optree.dtypes", "optree.registry", "optree.tree", "optree.op", "optree.traits"),
    *("optree.autodiff", "optree.ops"),
    *("optree.numpy", "optree.networks", "optree.rest"),
    *("optree.compile", "optree.run", "optree.html", "optree.xp", "optree.compat", "optree.testing", "optree.pictures"),
    *("optree.train", "optree.distributed", "optree.onnx", "optree"),
    *(
        "backends.intact",
        "backends.lazy",
        "backends.creation",
        "backends.random",
        "backends.functions",
        "backends.backend",
        "backends.execution",
    ),
    *("backends.cpu", "backends.gpu", "backends.export", "backends.neon", "backends.inspection", "backends"),
)

#: Modules that may import a package beyond NumPy and the standard library: an extra provides it.
EXTRAS = {
    "optree.distributed.mpi": {"mpi4py"},
    "optree.onnx.reading": {"google", "onnx"},
    "optree.onnx.graph": {"onnx"},
    "optree.onnx.saving": {"onnx"},
    "optree.onnx.values": {"onnx"},
    "optree.pictures": {"grandalf", "matplotlib"},
    "optree.train.images": {"PIL"},
    "optree.train.pictures": {"matplotlib"},
    "optree.train.watching": {"tqdm"},
}

FILE_LINES = 800
FUNCTION_LINES = 60

#: A module that is loaded when it is used: ``lazy.name``.
LAZILY = re.compile(r"(?<![.\w])lazy\.(\w+)")

UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "PLACE" + "HOLDER")))


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


CORE = {_module_name(path): path for top in ("optree", "backends") for path in sorted((ROOT / top).rglob("*.py"))}
SOURCES = sorted(
    path
    for top in ("optree", "backends", "tests", "examples", "benchmarks", "docs", "tools")
    for path in (ROOT / top).rglob("*.py")
)
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("Makefile"), *(ROOT / "docs").rglob("*.md"), *SOURCES])


@cache
def _text(path: Path) -> str:
    return path.read_text()


@cache
def _statements(path: Path) -> list[ast.AST]:
    """The module and the statements of a file, without what they compute: a tenth of the nodes."""
    found: list[ast.AST] = [ast.parse(_text(path))]
    for node in found:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            found += inner if isinstance(inner, list) else []
    return found


def _module(path: Path) -> Any:
    return _statements(path)[0]


@pytest.fixture(autouse=True, scope="module")
def _holds_all_files() -> Iterator[None]:
    """The trees of all files are millions of objects: the collector of garbage would take longer than the parser."""
    gc.disable()
    yield
    _statements.cache_clear()
    gc.enable()


def _places(found: dict[Path, Any]) -> str:
    """The findings in each file, a line each."""
    return _modules({str(path.relative_to(ROOT)): what for path, what in found.items()})


def _modules(found: dict[str, Any]) -> str:
    """The findings in each module, a line each."""
    return "\n".join(f"{name}: {what}" for name, what in found.items() if what)


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"line {node.lineno}: imports are absolute"
    module = node.module or ""
    inner = {f"{module}.{alias.name}" for alias in node.names} & CORE.keys()
    outer = {module} if len(inner) < len(node.names) else set()
    return sorted(inner | outer)


@cache
def _named(name: str) -> list[str]:
    """The modules that a module imports: at once, lazily, or for type checkers."""
    nodes = _statements(CORE[name])
    at_once = [t for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for t in _targets(node)]
    return [*at_once, *(lazy.MODULES[attribute] for attribute in LAZILY.findall(_text(CORE[name])))]


def _own_imports(name: str) -> list[str]:
    return [t for t in _named(name) if t in CORE and t != name]


def _package_of(name: str) -> str:
    """The longest of PACKAGES that a module is in; the roots are packages of their own, for what they collect."""
    found = [
        package for package in PACKAGES if name == package or (package.count(".") and name.startswith(package + "."))
    ]
    assert found, f"{name} is in no package: give it a place in PACKAGES of {Path(__file__).name}"
    return max(found, key=len)


def test_every_package_is_there() -> None:
    gone = [package for package in PACKAGES if package not in CORE]
    assert not gone, f"PACKAGES names what is not there: {gone}"


def test_imports_point_down() -> None:
    place = {name: PACKAGES.index(_package_of(name)) for name in CORE}
    found = {name: [target for target in _own_imports(name) if place[target] > place[name]] for name in CORE}
    assert not _modules(found), f"imports from packages above a module's own\n{_modules(found)}"


def test_errors_know_the_packages_whose_lines_are_not_the_users() -> None:
    assert all(variable.is_own_package(_module_name(path.parent / "__init__.py")) for path in CORE.values())
    assert not any(
        variable.is_own_package(package) for package in ("", None, "__main__", "numpy.lib", "optreeing", "tests")
    )


def test_optree_knows_no_backend() -> None:
    optree = [name for name in CORE if name.startswith("optree")]
    found = {name: [target for target in _named(name) if target.split(".")[0] == "backends"] for name in optree}
    assert not _modules(found), f"a tensor reaches its backend by an attribute\n{_modules(found)}"


def test_no_cycle_of_imports() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a cycle of imports: {' -> '.join((*path, name))}"
        if name not in done:
            for target in _own_imports(name):
                visit(target, (*path, name))
            done.add(name)

    for name in CORE:
        visit(name, ())


def _lines_of_inner_imports(nodes: list[ast.AST]) -> list[int]:
    """The lines of imports that stand inside functions."""
    imports = [node.lineno for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [line for line in imports if any(f.lineno <= line <= (f.end_lineno or 0) for f in functions)]


def test_no_import_inside_a_function() -> None:
    found = _places({path: _lines_of_inner_imports(_statements(path)) for path in SOURCES})
    assert not found, f"imports inside functions, at lines; they go to the top of the file\n{found}"


def test_imports_numpy_and_the_standard_library_only() -> None:
    allowed = {"optree", "backends", "numpy", *sys.stdlib_module_names}
    named = {name: {target.split(".")[0] for target in _named(name)} for name in CORE}
    found = {name: sorted(targets - allowed - EXTRAS.get(name, set())) for name, targets in named.items()}
    assert not _modules(found), f"the core installs NumPy alone\n{_modules(found)}"


def _long_functions(nodes: list[ast.AST]) -> dict[str, int]:
    """The functions of more than FUNCTION_LINES, and the lines of each."""
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    sizes = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    return {name: size for name, size in sizes.items() if size > FUNCTION_LINES}


def test_sizes() -> None:
    lengths = {path: len(_text(path).splitlines()) for path in SOURCES}
    long = _places({path: length for path, length in lengths.items() if length > FILE_LINES})
    assert not long, f"files of more than {FILE_LINES} lines are two files that have not met yet\n{long}"
    found = _places({path: _long_functions(_statements(path)) for path in SOURCES})
    assert not found, f"functions of more than {FUNCTION_LINES} lines\n{found}"


def test_nothing_is_left_for_later() -> None:
    lines = {path: enumerate(_text(path).splitlines(), 1) for path in TEXTS}
    found = _places({path: [i for i, line in each if UNFINISHED.search(line)] for path, each in lines.items()})
    assert not found, f"lines that speak of work left to do\n{found}"


def _undocumented(tree: Any) -> list[str]:
    """The public functions and classes without a docstring, and the module if it has none."""
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    named = {"the module itself": tree, **{node.name: node for node in defined if not node.name.startswith("_")}}
    return [name for name, node in named.items() if len(ast.get_docstring(node) or "") < 3]


def test_everything_public_is_documented() -> None:
    found = {name: _undocumented(_module(path)) for name, path in CORE.items()}
    assert not _modules(found), f"without a docstring\n{_modules(found)}"


def test_docstrings_name_things() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = {
        path: [ast.get_docstring(node) or "" for node in _statements(path) if isinstance(node, kinds)]
        for path in SOURCES
    }
    found = _places({path: [text for text in each if text.startswith("What ")] for path, each in texts.items()})
    assert not found, f"docstrings that begin with What\n{found}"


#: Rules rewrite certain ops: each names those of its own pattern. NumPy's protocol is by NumPy's functions, and the
#: C library's functions have names like ops'.
NAMING_OPS = (
    *("optree.ops", "optree.numpy", "optree.networks", "optree.compile.rules", "optree.tree.numpy_protocol"),
    "backends.cpu.codegen.vector_math",
)


def _op_names(node: ast.AST) -> list[str]:
    """The op names among the constants of a display, or of a text's words if all are."""
    if isinstance(node, ast.Set | ast.Tuple | ast.List):
        texts = [x.value for x in node.elts if isinstance(x, ast.Constant)]
    elif isinstance(node, ast.Dict):
        texts = [x.value for x in node.keys if isinstance(x, ast.Constant)]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.split()
        texts = words if OPS.keys() >= {*words} else []
    else:
        return []
    return [text for text in texts if text in OPS]


def _asks_which_op(node: ast.AST) -> bool:
    """Whether code asks an op for its name, or whether it is a function of NumPy's, or lists names of ops."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        named = any(isinstance(x, ast.Attribute) and x.attr == "name" for x in sides) and any(map(_op_names, sides))
        return named or any(isinstance(x, ast.Attribute) and ast.unparse(x) in NUMPY_VALUES for x in sides)
    if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict | ast.Constant):
        elements = [*node.elts] if isinstance(node, ast.Set | ast.Tuple | ast.List) else []
        return len(_op_names(node)) > 2 or sum(ast.unparse(x) in NUMPY_VALUES for x in elements) > 1
    return False


NUMPY_VALUES = {f"np.{op.numpy.__name__}" for op in OPS.values() if hasattr(op.numpy, "__name__")}


def test_what_compilers_ask_of_an_op_is_an_attribute_of_it() -> None:
    asking = [name for name in CORE if not name.startswith(NAMING_OPS)]
    found = {
        name: {
            node.lineno: ast.unparse(node)[:60] for node in ast.walk(_statements(CORE[name])[0]) if _asks_which_op(node)
        }
        for name in asking
    }
    assert not _modules(found), f"ops told apart by names: say the fact on the op (optree.op.op.Op)\n{_modules(found)}"
