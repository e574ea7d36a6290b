"""Lines by package, and caches, of ``optree/`` and ``backends/``.

All lines count: code, comments, docstrings and empty ones.

A cache stores values by key for the lifetime of a module or an object, and makes missing ones. One is counted for each

- function with arguments that is decorated with, or wrapped in, ``functools.cache`` or ``lru_cache``;
- dictionary, of a module or an object, in which the functions of that module or class both look up a key that may be
  missing (``get``, ``setdefault``, ``in``) and store a key;
- call of a class whose name ends in ``Cache``.

The rule also counts tables of one analysis: it is simple, so that counts can be compared.

    python tools/size.py             # lines by package, and the number of caches
    python tools/size.py --caches    # where each of them is
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("optree", "backends")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    """Every Python file of the packages."""
    return [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


def lines_by_package() -> dict[str, int]:
    """The lines of each package's own files, not of the packages in it."""
    found: dict[str, int] = {}
    for path in sources():
        package = str(path.parent.relative_to(ROOT))
        found[package] = found.get(package, 0) + len(path.read_text().splitlines())
    return dict(sorted(found.items()))


def caches(tree: ast.Module) -> dict[str, int]:
    """A module's caches: their names, each with a line."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            if node.args.args and any(_is_memo(decorator) for decorator in node.decorator_list):
                found[node.name] = node.lineno
        elif isinstance(node, ast.ClassDef):
            for name, line in _looked_up_and_stored(node).items():
                if name.startswith("self.") and name.count(".") == 1 and name != "self.__dict__":
                    found[f"{node.name}.{name.removeprefix('self.')}"] = line
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _makes_cache(node.value):
            found[_target(node)] = node.lineno
    module = {_target(node) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)}
    found |= {name: line for name, line in _looked_up_and_stored(tree).items() if name in module}
    # A method's cache that others use is found by both rules.
    others = {name.partition(".")[2] or name for name in found if not name.startswith(("self.", "cls."))}
    return {
        n: line for n, line in found.items() if not n.startswith(("self.", "cls.")) or n.split(".")[1] not in others
    }


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _makes_cache(value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call):
        return False
    return (_is_memo(value.func) and bool(value.args)) or _last_name(value.func).endswith("Cache")


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].rsplit(".", 1)[-1]


def _is_memo(node: ast.expr) -> bool:
    return _last_name(node.func if isinstance(node, ast.Call) else node) in ("cache", "lru_cache")


def _looked_up_and_stored(scope: ast.Module | ast.ClassDef) -> dict[str, int]:
    """The dictionaries that a scope's functions both look up and store in, each with a line that stores."""
    read: set[str] = set()
    written: dict[str, int] = {}
    for function in (node for node in ast.walk(scope) if isinstance(node, Function)):
        for node in ast.walk(function):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                written.setdefault(ast.unparse(node.value), node.lineno)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr == "setdefault":
                    written.setdefault(ast.unparse(node.func.value), node.lineno)
                if node.func.attr in ("get", "setdefault"):
                    read.add(ast.unparse(node.func.value))
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                read.add(ast.unparse(node.comparators[0]))
    return {name: line for name, line in written.items() if name in read}


def main(arguments: list[str] | None = None) -> None:
    """Print lines by package, and how many caches there are."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--caches", action="store_true", help="say where each cache is")
    options = parser.parse_args(arguments)
    lines = lines_by_package()
    for package, count in [*lines.items(), ("together", sum(lines.values()))]:
        print(f"{count:7,} lines  {package}")
    found = {path: caches(ast.parse(path.read_text())) for path in sources()}
    for path, names in found.items() if options.caches else ():
        for name, line in names.items():
            print(f"{path.relative_to(ROOT)}:{line}  {name}")
    print(f"{sum(map(len, found.values())):7} caches")


if __name__ == "__main__":
    main()
