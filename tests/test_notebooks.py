"""The notebooks run from top to bottom, and print what they were saved with."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def printed(cell):
    """The output of a cell: its text by stream, and the texts of what it showed.

    A kernel sends what is written in as many pieces as it likes: adjacent ones of a stream are joined.
    """
    outputs = cell.get("outputs", [])
    assert not any(output.output_type == "error" for output in outputs)
    pieces = []
    for output in outputs:
        kind = output.get("name", output.output_type)
        text = output.get("text") or output.get("data", {}).get("text/plain")
        if pieces and output.output_type == "stream" and pieces[-1][0] == kind:
            pieces[-1] = kind, pieces[-1][1] + text
        else:
            pieces.append((kind, text))
    return pieces


def test_the_pieces_of_a_stream_are_joined():
    def cell(*texts):
        shown = nbformat.v4.new_output("execute_result", {"text/plain": "3"})
        streams = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in texts]
        return nbformat.v4.new_code_cell(outputs=[*streams, shown])

    whole = cell(("stdout", "one\ntwo\n"), ("stderr", "three"))
    assert printed(cell(("stdout", "one\n"), ("stdout", "two\n"), ("stderr", "three"))) == printed(whole)
    assert printed(cell(("stdout", "one\ntwo\n"), ("stdout", "three"))) != printed(whole)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.matrix(least=0)
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
