"""Events that befall the cache folder, each made to happen: nothing broken is loaded, and nothing of others."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from backends.cpu import compiler
from backends.execution import compilations as cache
from optree.settings import SettingError, override, reread
from tests.harness.compiling import ROOT, adder, compiled, done, forget, needs_compiler, private, python

pytestmark = [needs_compiler, pytest.mark.usefixtures("folder")]

COMPILE = """
import ctypes
from backends.cpu.compiler import compile_source, compile_counts
x = ctypes.c_double()
compile_source({source!r}, "add")(ctypes.addressof(x))
assert x.value == {number}
counts = compile_counts()
print("compiled" if counts["misses"] else "kept")
"""


def the_file(folder):
    (file,) = private(folder).iterdir()
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
    shutil.copyfile(file, next(other for other in private(folder).iterdir() if other != file))
    forget()
    compiled(first)
    compiled(second)
    assert counted() == {"hits": 0, "disk_hits": 1, "misses": 3}


def test_a_whole_file_that_the_system_does_not_load_is_replaced(folder, counted):
    source = compiled()
    cache.write(private(folder), the_file(folder).name, b"\x7fELF of another system")
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


def test_processes_compile_the_same_source_at_once(folder, counted):
    source, number = adder()
    code = COMPILE.format(source=source, number=number)
    workers = [python(code, OPTREE_CACHE_DIR=folder) for _ in range(3)]
    assert {done(worker).strip() for worker in workers} <= {"compiled", "kept"}
    the_file(folder)
    compiled((source, number))
    assert counted() == {"hits": 0, "disk_hits": 1, "misses": 0}


# Folders of others


def refused(caplog, folder, reason):
    """Compile a source; check that the folder was left alone, and that the log says why, once."""
    before = sorted(path.name for path in folder.iterdir())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "backends.execution.compilations"):
        source = compiled()
        compiled()
    assert [reason in record.getMessage() for record in caplog.records] == [True], caplog.text
    assert "cached in memory only" in caplog.text
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
        assert (cache.unsafe_reason(inner) or "None").endswith(reason or "None")
        if home.st_uid == uid:
            faked[tmp_path] = state(0o700, uid)
            assert cache.unsafe_reason(inner) is None  # nobody else comes so far
            faked[tmp_path] = state(0o755, uid)
    faked[inner] = state(0o700, uid + 1)
    assert "inner belongs to another user" in cache.unsafe_reason(inner)


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
    with (
        override(cache_dir=tmp_path / paths[place]),
        caplog.at_level(logging.WARNING, "backends.execution.compilations"),
    ):
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
    with override(cache_dir=None), caplog.at_level(logging.WARNING, "backends.execution.compilations"):
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


#: The steps on disks D, of which A compiles in a new process, and whether the last of these finds its kernel.
DISKS = {
    "full": ("chmod 700 D; head -c 1M /dev/zero > D/zeros; A; A", "compiled"),
    "full_later": ("chmod 700 D; A; head -c 1M /dev/zero > D/zeros; A", "kept"),
    "read_only": ("chmod 700 D; A; mount -o remount,ro D; A", "kept"),
    "empty_read_only": ("chmod 700 D; mount -o remount,ro D; A; A", "compiled"),
    "noexec": ("chmod 700 D; mount -o remount,noexec D; A; A", "kept"),
}

ON_DISKS = """
import os, subprocess, traceback
import backends.cpu.compiler
for name, (steps, expected) in {disks!r}.items():
    os.mkdir(name)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", name], check=True)
    os.environ["OPTREE_CACHE_DIR"] = os.path.abspath(name)
    for step in steps.split("; "):
        if step != "A":
            subprocess.run(step.replace("D", name), shell=True)
        elif (child := os.fork()) == 0:
            try:
                exec({code!r})
                os._exit(10 if counts["misses"] else 11)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        else:
            found = {{10: "compiled", 11: "kept"}}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    assert found == expected, f"{{name}}: {{found}}"
"""


def test_disks_that_are_full_or_restricted(tmp_path):
    if not mounts():
        pytest.skip("this process may not mount a disk")
    source, number = adder()
    (tmp_path / "code.py").write_text(ON_DISKS.format(disks=DISKS, code=COMPILE.format(source=source, number=number)))
    command = ["unshare", "--mount", sys.executable, "code.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_disk_that_fills_up_while_writing(folder, monkeypatch, counted):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        source = compiled()
        compiled(source)
    assert list(private(folder).iterdir()) == []
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
    assert list(private(folder).iterdir()) == []


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


# What is deleted


def old(path):
    os.utime(path, (1, 1), follow_symlinks=False)
    return path


def test_nothing_of_the_users_is_deleted(folder, tmp_path):
    """Whatever its name, wherever in the cache folder, and however old."""
    compiled()
    results, elsewhere = folder / "tmp-results", tmp_path / "elsewhere"
    for place in (results / "deep", folder / "tmp-abcdefgh", elsewhere):
        place.mkdir(parents=True)
        (place / "work").write_text("mine")
    own = folder / cache.PRIVATE
    mine = [results / "deep" / "work", folder / "tmp-abcdefgh" / "work", elsewhere / "work"]
    for name in ("notes", "tmp-results", "tmp-abcdefgh.txt", "x" * 64):
        (own / name).write_text("mine")
        mine.append(own / name)
    (own / "tmp-folder1").mkdir()
    (own / "tmp-folder1" / "inner").mkdir()
    (own / "tmp-folder1" / "inner" / "work").write_text("mine")
    mine.append(own / "tmp-folder1" / "inner" / "work")
    for name in ("tmp-alink123", "a" * 64):
        (own / name).symlink_to(elsewhere)
        mine.append(own / name / "work")
    for path in (results, folder / "tmp-abcdefgh", *own.iterdir()):
        old(path)
    with override(cache_bytes=1):
        compiled()
    assert {path.read_text() for path in mine} == {"mine"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nothing_of_other_users_is_deleted(folder):
    compiled()
    own = private(folder)
    for name in ("tmp-abcdefgh", "b" * 64):
        (own / name).write_text("theirs")
        os.chown(own / name, 12345, 12345)
        old(own / name)
    (own / "tmp-folder12").mkdir()
    os.chown(own / "tmp-folder12", 12345, 12345)
    old(own / "tmp-folder12")
    with override(cache_bytes=1):
        compiled()
    assert {path.name for path in own.iterdir()} == {"tmp-abcdefgh", "b" * 64, "tmp-folder12"}


def test_a_private_folder_that_is_a_link_is_not_used(folder, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.mkdir(mode=0o700)
    (folder / cache.PRIVATE).symlink_to(tmp_path / "elsewhere")
    forget()
    refused(caplog, folder, "is a link")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_private_folder_that_others_may_write_to_is_not_used(folder, caplog, mode):
    compiled()
    private(folder).chmod(mode)
    forget()
    refused(caplog, folder, "others may write to")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_is_not_followed(folder, tmp_path, caplog):
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    forget()
    for chosen in (tmp_path / "link", tmp_path / "link" / "cache" / "inner"):
        cache._complaints.clear()
        with override(cache_dir=chosen):
            refused(caplog, tmp_path / "victim", "link of another user")


def test_an_empty_home_is_none(monkeypatch, caplog, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    there = os.listdir("/")
    forget()
    with override(cache_dir=None), caplog.at_level(logging.WARNING, "backends.execution.compilations"):
        compiled()
    assert "there is no home folder" in caplog.text
    assert list(tmp_path.iterdir()) == [] and os.listdir("/") == there
    with (
        pytest.raises(SettingError, match="OPTREE_CACHE_DIR takes a folder, not '~/kernels'"),
        override(cache_dir="~/kernels"),
    ):
        pass


@pytest.mark.parametrize("kind", ["FIFO", "folder", "socket"])
def test_what_is_no_file_is_not_waited_for(folder, monkeypatch, kind):
    source, number = adder()
    code = COMPILE.format(source=source, number=number)
    compiled((source, number))
    file = the_file(folder)
    file.unlink()
    if kind == "FIFO":
        os.mkfifo(file, 0o600)
    elif kind == "folder":
        file.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as made:
            monkeypatch.chdir(file.parent)  # a socket's path is short
            made.bind(file.name)
    process = python(code, OPTREE_CACHE_DIR=folder)
    try:
        assert done(process, limit=30).strip() == "compiled"
    finally:
        process.kill()
    assert file.is_dir() if kind == "folder" else file.is_file()


def test_the_folder_has_a_bound(folder):
    compiled()
    bound = int(3.5 * the_largest(folder))
    with override(cache_bytes=bound):
        for _ in range(6):
            last = compiled()
            assert sum(file.stat().st_size for file in private(folder).iterdir()) <= bound
            assert kept(folder, last).exists()


def the_largest(folder):
    return max(file.stat().st_size for file in private(folder).iterdir())


def kept(folder, source):
    return private(folder) / compiler._key(source[0], compiler.find_compiler())


def test_kernels_that_were_used_last_stay(folder, counted):
    first, second, third = (compiled() for _ in range(3))
    for place, source in enumerate((second, third, first)):
        os.utime(kept(folder, source), (place + 1, place + 1))
    forget()
    compiled(second)  # from disk, and so used
    assert counted()["disk_hits"] == 1
    size = the_largest(folder)
    cache._room.clear()
    with override(cache_bytes=int(3.5 * size)):  # of four, two stay, which are less than 3/4
        fourth = compiled()
    stay = {kept(folder, source).exists(): None for source in (second, fourth)}
    assert stay == {True: None}
    assert not kept(folder, third).exists() and not kept(folder, first).exists()


def test_processes_share_a_folder_that_is_full(folder):
    code = """
    from tests.harness.compiling import compiled, forget
    for _ in range(6):
        source = compiled()
        forget()
        compiled(source)
    """
    workers = [python(code, OPTREE_CACHE_DIR=folder, OPTREE_CACHE_BYTES=40_000) for _ in range(3)]
    for worker in workers:
        done(worker)
    files = list(private(folder).iterdir())
    assert files and not [file for file in files if file.name.startswith("tmp-")]
    assert sum(file.stat().st_size for file in files) <= 80_000
