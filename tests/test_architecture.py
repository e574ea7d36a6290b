"""The layers, in order, and the sizes that keep each file and function to one screen or a few.

An import points down, to a layer before its own; so a file can be read knowing
only those before it. See "Ten rules", 5.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: From the bottom up. A name that ends in a dot stands for every module that begins so; those of
#: one row may import each other where that makes no cycle.
LAYERS = (
    ("optree.registry", "optree.tree.methods", "optree.errors", "optree.later", "optree.locks"),
    ("optree.settings", "optree.dtypes"),
    (
        "optree.tree.types",
        "optree.tree.gradient_types",
        "optree.arrays",
        "optree.ops.philox",
        "optree.tree.traversal",
        "optree.tree.printing",
    ),
    ("optree.tree.numpy_protocol",),
    ("optree.tree.variable",),
    ("optree.tree.indexing",),
    ("optree.tree.node",),
    ("optree.ops.apply", "optree.ops.registration", "optree.ops.differentiable", "optree.ops.operators"),
    ("optree.ops.op",),
    ("optree.tree.tensor", "optree.ops.traits"),
    ("optree.ops.",),
    ("optree.ops",),
    ("optree.compile.program",),
    (
        "optree.compile.reference",
        "optree.compile.schedule",
        "optree.tree.substitution",
        "optree.compile.shapes",
        "optree.run.profile",
        "optree.run.mode",
    ),
    ("optree.tree.equality",),
    ("optree.metadiff", "optree.compile.rewriter"),
    ("optree.compile.dimensions",),
    ("optree.compile.fusion",),
    ("optree.compile.rules",),
    ("optree.compile.passes",),
    ("optree.run.debug",),
    ("optree.function",),
    ("optree.autodiff.reverse",),
    ("optree.autodiff",),
    ("optree.autodiff.jacobians", "optree.compat.nervana_graph"),
    ("optree.pictures",),
    ("optree.testing.examples",),
    ("optree.testing.promises", "optree.testing.random_trees"),
    ("optree.testing.conformance",),
    ("optree.testing",),
    ("optree",),
    (
        "backends.kernels",
        "backends.cpu.codegen.vector_math",
        "backends.cpu.codegen.halves",
        "backends.execution.errstate",
    ),
    ("backends.cpu.threads", "backends.execution.disk_cache"),
    ("backends.cpu.compiler",),
    ("backends.cpu.workers",),
    ("backends.cpu.entry",),
    (
        "backends.execution.axes",
        "backends.execution.memory",
        "optree.compile.loopnest",
        "backends.execution.matrix_layout",
    ),
    ("backends.execution.printer_common",),
    ("backends.cpu.codegen.elements", "backends.cpu.codegen.parallel", "backends.cpu.codegen.transposes"),
    ("backends.cpu.codegen.accumulators",),
    ("backends.cpu.codegen.printer", "backends.gpu.codegen.elements"),
    ("backends.gpu.codegen.printer",),
    ("backends.gpu.launch_config",),
    ("backends.cpu.runtime",),
    ("backends.gpu.kernel",),
    ("backends.execution.specialize",),
    ("backends.execution.epilogues",),
    ("backends.execution.executor", "backends.inspection"),
    ("backends.cpu.blocking", "backends.cpu.thread_pool"),
    ("backends.cpu.numpy_blocks", "backends.cpu.mkl"),
    ("backends.execution.memory_planner",),
    ("backends.cpu.plan",),
    ("backends.creation",),
    ("backends.random",),
    ("backends.backend",),
    ("backends.gpu.cublaslt",),
    ("backends.gpu.matmul",),
    ("backends.gpu.cupy_device", "backends.gpu.launchers", "backends.gpu.calls"),
    ("backends.gpu.runtime", "backends.gpu.cuda_graphs"),
    ("backends.cpu", "backends.gpu"),
    ("backends",),
)

#: Modules that may import a package beyond NumPy and the standard library: an extra provides it.
EXTRAS = {"optree.pictures": {"grandalf", "matplotlib"}, "optree.dtypes": {"ml_dtypes"}}

FILE_LINES = 500
FUNCTION_LINES = 60

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
TREES = {name: ast.parse(path.read_text()) for name, path in CORE.items()}


def _is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imports(node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """The imports that run, those under TYPE_CHECKING left out."""
    found: list[ast.Import | ast.ImportFrom] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            found.append(child)
        elif _is_typing_only(child):
            found += [i for part in child.orelse for i in _imports(ast.Module([part], []))]
        else:
            found += _imports(child)
    return found


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"line {node.lineno}: imports are absolute"
    module = node.module or ""
    inner = {f"{module}.{alias.name}" for alias in node.names} & CORE.keys()
    outer = {module} if len(inner) < len(node.names) else set()
    return sorted(inner | outer)


def _later(tree: ast.AST) -> list[str]:
    """The modules that `optree.later` is to load."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and "later" in map(ast.unparse, (node.func, *node.args))
    ]
    texts = [text for call in calls for text in ast.walk(call) if isinstance(text, ast.Constant)]
    return [str(text.value) for text in texts]


def _named(name: str) -> list[str]:
    """The modules that a module imports, at once or later."""
    return [*(t for node in _imports(TREES[name]) for t in _targets(node)), *_later(TREES[name])]


def _own_imports(name: str) -> list[str]:
    return [t for t in _named(name) if t in CORE and t != name]


def _stands_for(entry: str, name: str) -> bool:
    return name.startswith(entry) if entry.endswith(".") else name == entry


def _layer_of(name: str) -> int:
    for place, row in enumerate(LAYERS):
        if any(_stands_for(entry, name) for entry in row):
            return place
    raise AssertionError(f"{name} has no layer: give it a place in LAYERS of {Path(__file__).name}")


def test_every_layer_has_its_modules() -> None:
    gone = [entry for row in LAYERS for entry in row if not any(_stands_for(entry, name) for name in CORE)]
    assert not gone, f"LAYERS names what is not there: {gone}"


@pytest.mark.parametrize("name", CORE)
def test_imports_point_down(name: str) -> None:
    mine = _layer_of(name)
    up = [target for target in _own_imports(name) if _layer_of(target) > mine]
    assert not up, f"{name} imports {', '.join(up)} from a layer above its own"


@pytest.mark.parametrize("name", [name for name in CORE if name.startswith("optree")])
def test_optree_knows_no_backend(name: str) -> None:
    found = [target for target in _named(name) if target.split(".")[0] == "backends"]
    assert not found, f"{name} imports {found}: a tensor reaches its backend by an attribute"


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


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_inside_a_function(path: Path) -> None:
    lines = [
        inner.lineno
        for outer in ast.walk(ast.parse(path.read_text()))
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert not lines, f"imports inside functions at lines {lines}; they go to the top of the file"


@pytest.mark.parametrize("name", CORE)
def test_imports_numpy_and_the_standard_library_only(name: str) -> None:
    allowed = {"optree", "backends", "numpy", *sys.stdlib_module_names, *EXTRAS.get(name, ())}
    found = {target.split(".")[0] for target in _named(name)}
    assert found <= allowed, f"{name} imports {sorted(found - allowed)}; the core installs NumPy alone"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    text = path.read_text()
    length = len(text.splitlines())
    assert length <= FILE_LINES, f"{length} lines: more than {FILE_LINES} are two files that have not met yet"
    long = {
        node.name: size
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert not long, f"functions of more than {FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_left_for_later(path: Path) -> None:
    lines = [number for number, line in enumerate(path.read_text().splitlines(), 1) if UNFINISHED.search(line)]
    assert not lines, f"lines {lines} speak of work left to do"


@pytest.mark.parametrize("name", CORE)
def test_everything_public_is_documented(name: str) -> None:
    tree = TREES[name]
    public = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    bare = [node.name for node in public if len(ast.get_docstring(node) or "") < 3]
    if len(ast.get_docstring(tree) or "") < 3:
        bare.insert(0, "the module itself")
    assert not bare, f"{name}: no docstring for {', '.join(bare)}"
