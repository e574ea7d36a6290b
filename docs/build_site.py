"""Builds the documentation site in output/site: the pages of docs/, a reference of all public names, search.

``make docs`` runs it. Pages are written to output/pages, in the folders of the repository, so that their links
hold. A link to a page or a heading that does not exist stops the build.
"""

from __future__ import annotations

import base64
import contextlib
import html
import inspect
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import generate
from mkdocs.commands.build import build
from mkdocs.config.defaults import MkDocsConfig

import backends
import optree
from backends import Backend, gen_backend
from backends.random import RandomMethods
from optree import OpTreeNode, Tensor, Variable, distributed, pictures, testing, train, xp

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "output"
PAGES, SITE = OUTPUT / "pages", OUTPUT / "site"

#: The pages of the repository, by title and in order.
GUIDES = {
    "A tour": "docs/tour.md",
    "Gallery": "docs/gallery.md",
    "Complex numbers": "docs/complex.md",
    "Training": "docs/training.md",
    "A GPT-2 by name": "docs/gpt2.md",
    "Deploying": "docs/deploying.md",
    "Many processes": "docs/distributed.md",
    "Compiling": "docs/compiling.md",
    "GPUs": "docs/gpu.md",
    "The array API standard": "docs/array-api.md",
    "Writing ops": "docs/writing-ops.md",
    "neon's backends": "docs/neon.md",
    "Speed": "benchmarks/README.md",
    "Speed on a GPU": "benchmarks/gpu.md",
    "Contributing": "CONTRIBUTING.md",
    "Changes": "CHANGELOG.md",
}

#: Modules whose public names have a page each.
LIBRARIES = (
    *(backends, optree, train, train.losses, train.schedules, train.initializers),
    *(distributed, testing, xp, pictures),
)

#: Sections of NumPy's docstrings that list names with descriptions.
LISTS = ("Parameters", "Returns", "Raises", "Attributes", "Yields")

TEXT_OF = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)


def inline(text: str) -> str:
    """A docstring's text as Markdown, outside and inside of backquotes."""
    parts = TEXT_OF.split(text)
    for i, part in enumerate(parts):
        is_code = i % 2
        parts[i] = f"`{part.strip('`')}`" if is_code else re.sub(r"([*_])", r"\\\1", html.escape(part, quote=False))
    return "".join(parts)


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """The sections of a docstring: their headings, empty for the first, and lines."""
    heading, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith("---") and set(line) == {"-"} and lines:
            following = lines.pop()
            yield heading, lines
            heading, lines = following, []
        else:
            lines.append(line)
    yield heading, lines


def entries(lines: Iterable[str]) -> Iterator[str]:
    """The items of a section that lists names."""
    for line in lines:
        if line[:1].strip():
            name, colon, kind = line.partition(" : ")
            yield f"\n- **{inline(name)}**" + (f" ({inline(kind)})" if colon else "")
        elif line.strip():
            yield f"    {inline(line.strip())}"


def markdown_of(thing: Any) -> str:
    """A docstring as Markdown."""
    found = []
    for heading, lines in sections(inspect.getdoc(thing) or ""):
        if heading:
            found.append(f"\n**{heading}**\n")
        if heading in LISTS:
            found += entries(lines)
        elif heading == "Examples":
            found += ["```pycon", *lines, "```"]
        else:
            found += [line if line.startswith("    ") else inline(line) for line in lines]
    return "\n".join(found) + "\n"


def entry(name: str, thing: Any, level: int = 2) -> Iterator[str]:
    """A heading, the signature and the docstring of a public name, and those of a class's own methods."""
    anchor = name.rpartition(".")[2] if level == 2 else name
    yield f"\n{'#' * level} {inline(name)} {{: #{anchor} }}\n"
    if callable(thing):
        with contextlib.suppress(TypeError, ValueError):  # a class made in C has no signature
            yield f"```python\n{name}{generate.signature(thing, hidden=('self',))}\n```\n"
    yield markdown_of(thing)
    if inspect.isclass(thing) and level == 2:
        for own, member in vars(thing).items():
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if not own.startswith("_") and (inspect.isfunction(function) or isinstance(member, property)):
                yield from entry(f"{name}.{own}", getattr(thing, own), level + 1)


def reference() -> Iterator[tuple[str, str, str]]:
    """The pages of the reference: their titles, file names and texts."""
    be = gen_backend("cpu")
    for module, names in generate.families().items():
        title = generate.described(sys.modules[module]).rstrip(".").partition(":")[0]
        parts = [f"# {title}\n\nMethods of every backend. {markdown_of(sys.modules[module])}"]
        for name, others in names.items():
            parts += entry(f"be.{name}", getattr(be, name))
            parts += [f"\nOther names: {', '.join(f'`be.{other}`' for other in others)}.\n"] if others else []
        yield title, f"{module.removeprefix('optree.')}.md", "".join(parts)
    for title, classes in {
        "Backends": (Backend, RandomMethods),
        "Tensors and trees": (Variable, Tensor, OpTreeNode),
    }.items():
        parts = [f"# {title}\n"]
        for each in classes:
            parts += entry(each.__name__, each)
            for base in each.__mro__[1:]:
                if base.__module__ == "backends.creation":
                    parts += entry(base.__name__, base)
        yield title, f"{classes[0].__name__.lower()}.md", "".join(parts)
    for library in LIBRARIES:
        own = [name for name, x in vars(library).items() if getattr(x, "__module__", None) == library.__name__]
        known = sorted(getattr(library, "__all__", own))
        named = [(name, getattr(library, name)) for name in known if not name.startswith("_")]
        parts = [f"# {inline(library.__name__)}\n\n{markdown_of(library)}"]
        for name, thing in named:
            if callable(thing):
                parts += entry(f"{library.__name__}.{name}", thing)
        yield library.__name__, f"{library.__name__}.md", "".join(parts)


def fenced(text: str, kind: str = "text") -> str:
    """A block of code."""
    return f"\n````{kind}\n{text.rstrip()}\n````\n"


def notebook(path: Path, target: Path) -> None:
    """Write a notebook as a page, its pictures beside it."""
    parts, pictures_of = [], 0
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(f"\n{source}\n" if cell["cell_type"] == "markdown" else fenced(source, "python"))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for kind, suffix in (("image/svg+xml", "svg"), ("image/png", "png")):
                if kind in data:
                    content = "".join(data[kind])
                    picture = target.with_name(f"{target.stem}_{pictures_of}.{suffix}")
                    picture.write_bytes(content.encode() if suffix == "svg" else base64.b64decode(content))
                    parts.append(f"\n![the picture of the cell above]({picture.name})\n")
                    pictures_of += 1
                    break
            else:
                parts.append(fenced("".join(output.get("text") or data.get("text/plain") or "")))
    target.write_text(page("".join(parts)))


def page(text: str) -> str:
    """A page of the repository, with links to scripts and notebooks as links to their pages."""
    text = re.sub(r"(\]\((?:\.\./)?examples/\w+)\.py\)", r"\1.md)", text)
    text = re.sub(r"(\]\([^)]*)\.ipynb\)", r"\1.md)", text)
    # A list may follow a paragraph at once, as on GitHub.
    return re.sub(r"(?m)^(?![-*] |[ |]|```)(.+)\n(?=- )", r"\1\n\n", text)


def write() -> dict[str, Any]:
    """Write all pages, and return the navigation."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in ("README.md", "docs/functions.md", *GUIDES.values()):
        target = PAGES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / path).read_text()
        target.write_text(page(text))
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):  # pictures, scripts and data
            linked = ((ROOT / path).parent / link).resolve()
            if linked.suffix not in (".md", ".ipynb") and linked.parent.name != "examples":
                copy = PAGES / linked.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, copy)
    examples, listed = {}, {}
    (PAGES / "notebooks").mkdir()
    (PAGES / "examples").mkdir()
    (PAGES / "reference").mkdir()
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = script.read_text()
        title = (re.match(r'"""(.+?)[.:\n]', text) or [script.stem, script.stem])[1]
        (PAGES / "examples" / f"{script.stem}.md").write_text(f"# {title}\n" + fenced(text, "python"))
        examples[title] = f"examples/{script.stem}.md"
    for saved in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook(saved, PAGES / "notebooks" / f"{saved.stem}.md")
        examples[f"Notebook: {saved.stem}"] = f"notebooks/{saved.stem}.md"
    for title, name, text in reference():
        (PAGES / "reference" / name).write_text(text)
        listed[title] = f"reference/{name}"
    listed = {"All functions": "docs/functions.md", **listed}
    return {"Start": "README.md", "Guides": GUIDES, "Examples": examples, "Reference": listed}


def config_of(nav: dict[str, Any]) -> MkDocsConfig:
    """The settings of MkDocs: no request to another site, and each broken link a warning."""

    def listed(given: Any) -> Any:
        return [{title: listed(x)} for title, x in given.items()] if isinstance(given, dict) else given

    config = MkDocsConfig()
    config.load_dict(
        {
            "site_name": "op-tree",
            "docs_dir": str(PAGES),
            "site_dir": str(SITE),
            "nav": listed(nav),
            "theme": {"name": "readthedocs", "highlightjs": False, "navigation_depth": 2},
            "plugins": ["search"],
            "markdown_extensions": ["attr_list", {"codehilite": {"noclasses": True, "guess_lang": False}}],
            "use_directory_urls": False,
            "validation": {"links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}},
            "strict": True,
        }
    )
    errors, warnings = config.validate()
    if errors or warnings:
        raise SystemExit(f"build_site: {[*errors, *warnings]}")
    return config


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    build(config_of(write()))
    print(f"{SITE / 'index.html'}: {len(list(SITE.rglob('*.html')))} pages")
