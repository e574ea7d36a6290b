"""The tests' own limits: a test that takes too much memory or time fails, and the others go on."""

import sys
import time

import numpy as np
import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_more_memory_than_a_test_may_have_is_an_error(pytestconfig):
    if not pytestconfig.option.memory:
        pytest.skip("--memory 0")
    with pytest.raises(MemoryError):
        np.empty(int(pytestconfig.option.memory * 2**30), np.uint8)


@pytest.mark.timeout(0.1)
@pytest.mark.xfail(raises=pytest.fail.Exception, strict=True, reason="it is stopped")
def test_a_test_that_takes_too_long_fails():
    time.sleep(30)


def test_every_test_has_a_limit_of_time(pytestconfig):
    limits = [float(pytestconfig.getini(name)) for name in ("timeout", "faulthandler_timeout")]
    assert 0 < limits[0] < limits[1] and pytestconfig.getini("faulthandler_exit_on_timeout")
