"""Settings: the environment, `override`, and what neither can be given."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from backends import gen_backend
from optree import settings
from optree.settings import SETTINGS, SettingError, override, value

ROOT = Path(__file__).resolve().parent.parent

#: name -> text in the environment, its value, and texts that are errors.
EXAMPLES = {
    "cache_bytes": ("1048576", 1 << 20, ("0", "-1", "1GB", "1.5")),
    "cache_dir": ("/var/tmp/kernels", Path("/var/tmp/kernels"), ()),
    "compile_seconds": ("2.5", 2.5, ("0", "-1", "nan", "inf", "soon")),
    "num_threads": ("3", 3, ("0", "-2", "two", "1.5")),
    "rounding": ("each", "each", ("once", "0")),
    "stale_trees": ("error", "error", ("Error", "yes", "0")),
    "sync": ("1", True, ("yes", "2")),
    "tuple_access": ("ignore", "ignore", ("never", "0")),
    "show": ("fusion, source", frozenset({"fusion", "source"}), ("sauce", "source,sauce")),
}


@pytest.fixture(autouse=True)
def environment_read_anew(monkeypatch):
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    settings.reread()
    yield
    settings.reread()


def test_every_setting_has_an_example():
    assert EXAMPLES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_environment_gives_values(monkeypatch, name):
    text, expected, _ = EXAMPLES[name]
    setting = SETTINGS[name]
    assert value(name) == setting.default
    monkeypatch.setenv(setting.variable, text)
    assert value(name) == setting.default  # read once
    settings.reread()
    assert value(name) == expected
    monkeypatch.setenv(setting.variable, "")
    settings.reread()
    assert value(name) == setting.default


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, (_, _, bad) in EXAMPLES.items() for text in bad])
def test_wrong_values_are_errors_that_say_what_is_taken(monkeypatch, name, text):
    setting = SETTINGS[name]
    expected = re.escape(f"{setting.variable} takes {setting.takes}, not {text!r}")
    monkeypatch.setenv(setting.variable, text)
    with pytest.raises(SettingError, match=expected):
        value(name)
    with pytest.raises(SettingError, match=expected), override(**{name: text}):
        pass


@pytest.mark.parametrize("name", [name for name, (_, _, bad) in EXAMPLES.items() if bad])
def test_a_wrong_variable_is_an_error_as_a_backend_is_made(monkeypatch, name):
    setting = SETTINGS[name]
    monkeypatch.setenv(setting.variable, EXAMPLES[name][2][0])
    with pytest.raises(SettingError, match=f"{setting.variable} takes {setting.takes}"):
        gen_backend("cpu")


def test_a_relative_cache_folder_counts_from_where_the_first_backend_is_made(monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTREE_CACHE_DIR", "kernels")
    gen_backend("cpu")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert value("cache_dir") == tmp_path / "kernels"


def test_override_holds_within_its_block():
    with override(num_threads=2, compile_seconds=5):
        assert (value("num_threads"), value("compile_seconds")) == (2, 5.0)
        with override(num_threads=3):
            assert (value("num_threads"), value("compile_seconds")) == (3, 5.0)
        with override(num_threads=None):
            assert value("num_threads") is None
        assert value("num_threads") == 2
    assert value("num_threads") is None
    with pytest.raises(KeyError), override(num_threads=4):
        raise KeyError
    assert value("num_threads") is None


def test_override_holds_in_its_own_thread_alone():
    seen = []
    with override(num_threads=2):
        thread = threading.Thread(target=lambda: seen.append(value("num_threads")))
        thread.start()
        thread.join()
    assert seen == [None]


def test_python_values_are_checked_like_text():
    with override(show=["source"], cache_dir="~/kernels"):
        assert value("show") == {"source"}
        assert value("cache_dir") == Path.home() / "kernels"
    for wrong in (True, 2.0, -1, [2]):
        with pytest.raises(SettingError, match="OPTREE_NUM_THREADS"), override(num_threads=wrong):
            pass


def test_unknown_names_are_errors_that_list_the_known():
    with pytest.raises(SettingError, match=r"no setting 'threads'; there are cache_bytes, .*, show"):
        value("threads")
    with pytest.raises(SettingError, match="no setting 'threads'"), override(threads=2):
        pass


def test_no_variable_is_named_that_is_not_a_setting():
    named = {
        (variable, path.name)
        for top in ("optree", "backends", "docs", "examples", "benchmarks")
        for path in (ROOT / top).rglob("*")
        if path.suffix in (".py", ".md")
        for variable in re.findall(r"OPTREE_[A-Z_]+", path.read_text())
    }
    known = {setting.variable for setting in SETTINGS.values()} | {"OPTREE_PORTABLE", "OPTREE_THREADS"}  # macros of C
    assert {variable for variable, _ in named} <= known, named


def test_the_document_lists_every_setting():
    text = (ROOT / "docs" / "compiling.md").read_text()
    for setting in SETTINGS.values():
        assert f"`{setting.variable}` | {setting.takes} | {setting.meaning}" in text
