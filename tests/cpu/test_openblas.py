"""NumPy's OpenBLAS in one thread."""

from __future__ import annotations

import os
from threading import Event, Thread

import pytest

from backends.cpu.openblas import one_thread, threads

pytestmark = pytest.mark.skipif(threads() is None, reason="NumPy has another BLAS")


def test_a_child_forked_during_a_product_has_openblas_threads() -> None:
    control = threads()
    assert control is not None
    before, begun, forked = control.get(), Event(), Event()

    def multiply() -> None:
        with one_thread():
            begun.set()
            forked.wait()

    control.set(2)
    thread = Thread(target=multiply)
    thread.start()
    try:
        begun.wait()
        child = os.fork()
        if not child:
            os._exit(control.get())
        _, status = os.waitpid(child, 0)
    finally:
        forked.set()
        thread.join()
        found = control.get()
        control.set(before)
    assert (os.waitstatus_to_exitcode(status), found) == (2, 2)
