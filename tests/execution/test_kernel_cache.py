"""What may happen to the cache folder, each made to happen: nothing broken is loaded, and nothing of others."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backends.cpu import compiler
from backends.execution import disk_cache as cache
from optree.settings import override, reread
from tests.harness.compiling import adder, compiled, done, forget, needs_compiler, python

pytestmark = [needs_compiler, pytest.mark.usefixtures("folder")]

COMPILE = """
from backends.cpu.compiler import compile_source, compile_counts
from tests.harness.compiling import added
assert added(compile_source({source!r}, "add")) == {number}
counts = compile_counts()
print("compiled" if counts["misses"] else "kept")
"""


def the_file(folder):
    (file,) = folder.iterdir()
    return file


def test_the_folder_is_the_users_alone(folder):
    compiled()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert the_file(folder).stat().st_mode & 0o777 == 0o600


def test_the_folder_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("OPTREE_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with override(cache_dir=None):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache.cache_folder() == tmp_path / "xdg" / "optree"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification says to ignore
        assert cache.cache_folder() == tmp_path / ".cache" / "optree"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache.cache_folder() == tmp_path / ".cache" / "optree"
        compiled()
        the_file(tmp_path / ".cache" / "optree")
    reread()


@pytest.mark.parametrize("fault", ["truncate", "empty", "flip first", "flip middle", "flip last", "longer", "link"])
def test_a_file_that_is_not_what_was_stored_is_replaced(folder, counted, fault):
    source = compiled()
    file = the_file(folder)
    content = bytearray(file.read_bytes())
    if fault == "truncate":
        del content[len(content) // 2 :]
    elif fault == "empty":
        content.clear()
    elif fault == "longer":
        content += b"more"
    elif fault == "link":
        file.unlink()
        file.symlink_to("/no/such/file")
    else:
        content[{"flip first": 0, "flip middle": len(content) // 2, "flip last": -1}[fault]] ^= 1
    if fault != "link":
        file.write_bytes(content)
    forget()
    compiled(source)
    assert counted()["misses"] == 2
    forget()
    compiled(source)
    assert counted() == {"hits": 0, "disk_hits": 1, "misses": 2}


def test_a_file_under_the_key_of_another_is_not_loaded(folder, counted):
    first = compiled()
    file = the_file(folder)
    second = compiled()
    shutil.copyfile(file, next(other for other in folder.iterdir() if other != file))
    forget()
    compiled(first)
    compiled(second)
    assert counted() == {"hits": 0, "disk_hits": 1, "misses": 3}


def test_a_whole_file_that_the_system_does_not_load_is_replaced(folder, counted):
    source = compiled()
    cache.write(folder, the_file(folder).name, b"\x7fELF of another system")
    forget()
    compiled(source)
    assert counted()["misses"] == 2


def test_a_loaded_library_outlives_its_file(folder):
    source, number = adder()
    function = compiler.compile_source(source, "add")
    with open(the_file(folder), "r+b") as file:
        file.truncate(100)
    compiled((source, number))
    shutil.rmtree(folder)
    compiled((source, number))
    assert function is not None


def test_processes_compile_the_same_source_at_once(folder):
    source, number = adder()
    code = COMPILE.format(source=source, number=number)
    workers = [python(code, OPTREE_CACHE_DIR=folder) for _ in range(4)]
    assert {done(worker).strip() for worker in workers} <= {"compiled", "kept"}
    the_file(folder)
    assert done(python(code, OPTREE_CACHE_DIR=folder)).strip() == "kept"


# Folders of others


def refused(caplog, folder, reason):
    """Compile a source; check that the folder was left alone, and that the log says why, once."""
    before = sorted(path.name for path in folder.iterdir())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "backends.execution.disk_cache"):
        source = compiled()
        compiled()
    assert [reason in record.getMessage() for record in caplog.records] == [True], caplog.text
    assert "kept in memory only" in caplog.text
    assert "OPTREE_CACHE_DIR" in caplog.text and "chmod" not in caplog.text, "it may be /tmp"
    assert sorted(path.name for path in folder.iterdir()) == before
    return source


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(folder, caplog, counted, mode):
    source = compiled()
    forget()
    folder.chmod(mode)
    compiled(source)
    assert counted() == {"hits": 0, "disk_hits": 0, "misses": 2}  # the file is whole, and yet not loaded
    forget()
    refused(caplog, folder, "others may write to")


def test_the_way_to_a_folder_is_checked(monkeypatch, tmp_path):
    inner = tmp_path / "home" / "inner"
    real, faked = Path.stat, {}
    monkeypatch.setattr(Path, "stat", lambda path, **k: faked.get(path) or real(path, **k))
    inner.mkdir(parents=True, mode=0o700)
    uid = os.geteuid()

    def state(mode, owner=0, group=0):
        return os.stat_result((0o040000 | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))

    for above in tmp_path.parents:
        faked[above] = state(0o755)
    faked[tmp_path] = state(0o755, uid)
    for home, reason in (
        (state(0o755, uid), None),
        (state(0o777, uid), "home, where others may write"),
        (state(0o775, uid), "home, where others may write"),
        (state(0o1777), None),
        (state(0o755, uid + 1), "home, which belongs to another user"),
    ):
        faked[tmp_path / "home"] = home
        assert (cache.why_not(inner) or "None").endswith(reason or "None")
        if home.st_uid == uid:
            faked[tmp_path] = state(0o700, uid)
            assert cache.why_not(inner) is None  # nobody else comes so far
            faked[tmp_path] = state(0o755, uid)
    faked[inner] = state(0o700, uid + 1)
    assert "inner belongs to another user" in cache.why_not(inner)


def test_links_are_followed_to_what_counts(folder, caplog, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "real")
    compiled()
    the_file(tmp_path / "real")
    forget()
    (tmp_path / "real").chmod(0o777)
    refused(caplog, tmp_path / "real", "others may write to")


def test_a_file_that_others_may_write_to_is_not_loaded(folder, counted):
    source = compiled()
    the_file(folder).chmod(0o622)
    forget()
    compiled(source)
    assert counted()["misses"] == 2
    assert the_file(folder).stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(folder, caplog):
    compiled()
    forget()
    os.chown(folder, 12345, 12345)
    refused(caplog, folder, "belongs to another user")


# Folders that do not take files


@pytest.mark.parametrize("place", ["a file", "under a file", "a link to nowhere", "/proc/optree"])
def test_a_folder_that_cannot_be_is_done_without(tmp_path, caplog, counted, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    paths = {"a file": "file", "under a file": "file/cache", "a link to nowhere": "nowhere", "/proc/optree": place}
    forget()
    with override(cache_dir=tmp_path / paths[place]), caplog.at_level(logging.WARNING, "backends.execution.disk_cache"):
        source = compiled()
        compiled(source)
    assert "cannot be used" in caplog.text
    assert counted() == {"hits": 1, "disk_hits": 0, "misses": 1}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_to_write_is_read(folder, counted):
    source = compiled()
    folder.chmod(0o500)
    forget()
    compiled(source)
    assert counted()["disk_hits"] == 1
    compiled()
    assert the_file(folder)


def test_a_user_without_home_is_served(monkeypatch, caplog, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that the system does not know
    forget()
    with override(cache_dir=None), caplog.at_level(logging.WARNING, "backends.execution.disk_cache"):
        compiled()
    assert "there is no home folder" in caplog.text
    assert list(tmp_path.iterdir()) == []


def mounts():
    """Whether this process may mount a disk of its own."""
    try:
        command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        ("chmod 700 D; head -c 1M /dev/zero > D/zeros; A; A", "compiled"),
        ("chmod 700 D; A; head -c 1M /dev/zero > D/zeros; A", "kept"),
        ("chmod 700 D; A; mount -o remount,ro D; A", "kept"),
        ("chmod 700 D; mount -o remount,ro D; A; A", "compiled"),
        ("chmod 700 D; mount -o remount,noexec D; A; A", "kept"),
    ],
    ids=["full", "full later", "read-only", "empty read-only", "noexec"],
)
def test_a_disk_that_is_full_or_restricted(tmp_path, disk, expected):
    if not mounts():
        pytest.skip("this process may not mount a disk")
    source, number = adder()
    (tmp_path / "code.py").write_text(COMPILE.format(source=source, number=number))
    steps = disk.replace("A", "$PYTHON code.py").replace("D", "disk")
    script = f"mkdir disk; mount -t tmpfs -o size=128k tmpfs disk; {steps}"
    process = python(
        f"""
        import subprocess, sys
        run = subprocess.run(["unshare", "--mount", "sh", "-c", {script!r}], cwd={str(tmp_path)!r})
        sys.exit(run.returncode)
        """,
        OPTREE_CACHE_DIR=tmp_path / "disk",
        PYTHON=sys.executable,
    )
    assert done(process).split()[-1] == expected


def test_a_disk_that_fills_up_while_writing(folder, monkeypatch, counted):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        source = compiled()
        compiled(source)
    assert list(folder.iterdir()) == []
    assert counted() == {"hits": 1, "disk_hits": 0, "misses": 1}


def test_no_room_anywhere_is_an_error_with_the_compilers_words(folder):
    code = f"""
    import resource
    from backends.cpu.compiler import compile_source
    from optree.errors import CompilerError
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        compile_source({adder()[0]!r}, "add")
    except CompilerError as error:
        print(error)
    """
    output = done(python(code, OPTREE_CACHE_DIR=folder))
    assert "the C compiler" in output
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="libraries are loaded from files here")
def test_libraries_are_loaded_from_files_where_memory_does_not_do(folder, monkeypatch):
    def none(name):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", none)
    compiled()
    compiled()


def test_loading_leaves_no_files_open(folder):
    def opened():
        return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    compiled()
    before = opened()
    for _ in range(5):
        source = compiled()
        forget()
        compiled(source)
    assert opened() == before
