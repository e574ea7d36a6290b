"""The notebooks run from top to bottom, and print what they were saved with."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def printed(cell):
    """What a cell wrote, and the texts of what it showed."""
    outputs = cell.get("outputs", [])
    assert not any(output.output_type == "error" for output in outputs)
    return [output.get("text") or output.get("data", {}).get("text/plain") for output in outputs]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_run_and_print_what_they_were_saved_with(path, tmp_path):
    saved = nbformat.read(path, as_version=4)
    nbformat.validate(saved)
    run = nbformat.read(path, as_version=4)
    NotebookClient(run, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(saved.cells, run.cells, strict=True):
        if before.cell_type == "code" and "varies" not in before.metadata.get("tags", []):
            assert printed(after) == printed(before), before.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_small_and_show_pictures(path):
    assert path.stat().st_size < 300_000
    shown = {
        kind
        for cell in nbformat.read(path, as_version=4).cells
        for o in cell.get("outputs", [])
        for kind in o.get("data", {})
    }
    assert {"image/svg+xml", "image/png"} <= shown
