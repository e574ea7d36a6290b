"""ONNX's own tests of operators: each passes, or is refused with its reason."""

import importlib
import pkgutil
import re
import warnings

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree.errors import ModelError

onnx = pytest.importorskip("onnx")
PACKAGE = "onnx.backend.test.case.node"

#: The differences that are rounding: kernels compute halves in float32.
TOLERANCES = {"float16": 4e-3, "bfloat16": 2e-2}

#: The modules of onnx 1.23 with tests that are refused, and how many. Of the others, all pass.
VERSION = "1.23"
REFUSED = {
    name: int(count)
    for name, count in (
        pair.split(":")
        for pair in """
adagrad:2 adam:2 bernoulli:6 bitcast:10 cast:52 castlike:96 deformconv:4 dequantizelinear:9 dft:10 dropout:6
equal:2 gridsample:18 identity:2 if_:2 image_decoder:9 loop:2 lppool:1 lstm:1 maxpool:2 maxunpool:2
melweightmatrix:1 momentum:3 nonmaxsuppression:10 nonzero:1 not_:3 optionalgetelement:4 optionalhaselement:7
quantizelinear:7 reducemax:2 reducemin:1 regex_full_match:3 roialign:1 scan:1 scatterelements:3 scatternd:5
sequence_map:12 sequenceinsert:2 splittosequence:3 stft:2 string_concat:5 string_split:6 stringnormalizer:6
tensorscatter:3 tfidfvectorizer:7 unique:7
""".split()
    )
}


def _modules():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [x.name for x in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)]


def _cases(module):
    """The tests that importing a module adds."""
    added = importlib.import_module(PACKAGE)._NodeTestCases
    before = len(added)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{PACKAGE}.{module}")
    return added[before:]


def _loaded(case, be, given):
    """A model, and the inputs that are left where those that decide shapes are constants."""
    try:
        return optree.onnx.load(case.model, be), given
    except ModelError as error:
        if "must be a constant" not in str(error):
            raise
    known = {name: x for name, x in given.items() if x.ndim == 0 or (x.ndim == 1 and x.dtype.kind in "iub")}
    known |= {name: x for name, x in given.items() if name in ("scales", "roi")}
    rest = {name: x for name, x in given.items() if name not in known}
    return optree.onnx.load(case.model, be, constants=known), rest


def _run(be, case):
    """Load a model, and compare one call."""
    given, wanted = (
        [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in values]
        for values in case.data_sets[0]
    )
    if not all(isinstance(x, np.ndarray | np.generic) for x in [*given, *wanted]):
        raise ModelError("input: sequences are no tensors")
    names = [x.name for x in case.model.graph.input]
    model, rest = _loaded(case, be, dict(zip(names, map(np.asarray, given), strict=True)))
    for x, y in zip((x.get() for x in model(*rest.values())), map(np.asarray, wanted), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        rtol = TOLERANCES.get(str(y.dtype), 1e-3)
        np.testing.assert_allclose(x.astype("d"), y.astype("d"), rtol=rtol, atol=1e-6 if rtol == 1e-3 else rtol)


@pytest.mark.matrix
@pytest.mark.parametrize("module", _modules())
def test_onnxs_own_tests_pass_or_are_refused(module):
    be = gen_backend("cpu", jit=False)
    refused, failed = [], {}
    for case in _cases(module):
        try:
            _run(be, case)
        except ModelError as error:
            refused.append(case.name)
            assert re.match(r"node .+ \(\w+, version \d+\): |in(put|itializer)|the model is of version", str(error))
        except Exception as error:  # every other one is a failure of ours
            failed[case.name] = str(error)[:200]
    assert not failed
    if onnx.__version__.startswith(VERSION):
        assert len(refused) == REFUSED.get(module, 0), refused
