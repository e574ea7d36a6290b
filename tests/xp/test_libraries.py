"""SciPy's and scikit-learn's code for the array API standard runs on arrays, and gives what it gives of NumPy's.

The calls of a library run in one process, not the tests': SciPy reads SCIPY_ARRAY_API when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

BEGINNING = """
import numpy as np
from backends import gen_backend

rng = np.random.default_rng(0)
x = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 4))
y = x @ np.array([1.0, -2.0, 0.5, 3.0]) + 0.1 * rng.standard_normal(60)
labels = (y > 0).astype(np.int64)
xp = gen_backend("cpu").xp


def parts(found):
    return [each for part in found for each in parts(part)] if isinstance(found, tuple | list) else [found]


def same(call, *arrays):
    expected = parts(call(*arrays))
    found = parts(call(*map(xp.asarray, arrays)))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is xp.Array, type(one)
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-6, atol=1e-6)
"""

SKLEARN = """
from sklearn import set_config
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances, rbf_kernel
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import KernelCenterer, MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler

set_config(array_api_dispatch=True)


def scaled(scaler):
    def call(x):
        fitted = scaler.fit(x)
        z = fitted.transform(x)
        return [z, fitted.inverse_transform(z)] if hasattr(fitted, "inverse_transform") else z

    return call
"""

SKLEARN_CALLS = {
    "StandardScaler": "same(scaled(StandardScaler()), x)",
    "other scalers": "\n".join(f"same(scaled({name}()), x)" for name in ("MinMaxScaler", "MaxAbsScaler", "Normalizer")),
    "PCA": """
def call(x, solver="full"):
    fitted = PCA(3, svd_solver=solver, random_state=0, power_iteration_normalizer="QR").fit(x)
    z = fitted.transform(x)
    return [abs(z), fitted.explained_variance_ratio_, fitted.mean_, fitted.inverse_transform(z)]

same(call, x)
same(lambda x: call(x, "covariance_eigh"), x)
same(lambda x: call(x, "randomized"), x)
""",
    "Ridge": """
def call(x, y):
    fitted = Ridge(solver="svd").fit(x, y)
    return [fitted.coef_, fitted.predict(x)]

same(call, x, y)
""",
    "classifiers": """
for make in (LinearDiscriminantAnalysis, GaussianNB, LogisticRegression):
    def call(x, labels):
        fitted = make().fit(x, labels)
        return [fitted.predict(x), fitted.predict_proba(x)]

    same(call, x, labels)
same(lambda x, labels: RidgeClassifier(solver="svd").fit(x, labels).predict(x), x, labels)
""",
    "mixtures": """
def call(x):
    fitted = GaussianMixture(2, init_params="random", random_state=0, means_init=x[:2, :]).fit(x)
    return [fitted.means_, fitted.predict(x)]

same(call, x)
""",
    "pairs and parts": """
same(lambda x: [cosine_similarity(x), euclidean_distances(x), rbf_kernel(x)], x)
same(lambda x: KernelCenterer().fit_transform(x @ x.T), x)
same(lambda x: train_test_split(x, random_state=0), x)
""",
}

SCIPY = """
from scipy import constants, differentiate, integrate, optimize, signal, special, stats
from scipy.cluster import vq
from scipy.optimize import elementwise
from scipy.spatial.transform import Rotation

p = rng.random((50, 3)) + 0.1
"""

SCIPY_CALLS = {
    "special": """
for name in ("erf", "erfc", "expit", "gammaln", "i0", "i1e", "log_ndtr", "logit", "ndtr", "ndtri"):
    same(getattr(special, name), p * 0.5)
same(lambda p: [special.xlogy(p, p + 1), special.rel_entr(p, p + 1), special.gammainc(p, p)], p)
same(lambda x: [special.logsumexp(x, axis=0), special.softmax(x, axis=1), special.log_softmax(x, axis=1)], x)
""",
    "statistics": """
for name in ("zscore", "skew", "kurtosis", "sem", "gmean", "hmean", "variation", "entropy", "iqr", "circmean"):
    same(getattr(stats, name), p)
same(lambda p: [getattr(stats.normaltest(p), name) for name in ("statistic", "pvalue")], p)
same(lambda x, y: [getattr(stats.pearsonr(x[:, 0], y), name) for name in ("statistic", "pvalue")], x, y)
same(lambda x, y: [getattr(stats.ttest_ind(x[:, 0], y), name) for name in ("statistic", "pvalue")], x, y)
same(lambda x, y: [getattr(stats.mannwhitneyu(x[:, 0], y), name) for name in ("statistic", "pvalue")], x, y)
""",
    "clusters": """
same(vq.whiten, x)
same(lambda x: vq.kmeans2(x, x[:3, :], minit="matrix")[0], x)
same(lambda x: vq.vq(x, x[:3, :]), x)
""",
    "integrals, roots and slopes": """
same(lambda x: [integrate.trapezoid(x, axis=0), integrate.cumulative_trapezoid(x, axis=0)], x)
same(lambda p: elementwise.find_root(lambda z, c: z**2 - c, (p * 0, p + 2), args=(p,)).x, p)
same(lambda p: elementwise.find_minimum(lambda z, c: (z - c) ** 2, (p - 2, p - 1, p + 2), args=(p,)).x, p)
same(lambda p: integrate.tanhsinh(lambda z, c: z**2 * c, p * 0, p, args=(p,)).integral, p)
same(lambda p: differentiate.derivative(lambda z: z**3, p).df, p)
same(lambda y: [optimize.rosen(y), optimize.rosen_der(y)], y)
""",
    "signals, rotations and units": """
same(lambda x: signal.detrend(x, axis=0), x)
same(lambda y: [signal.savgol_filter(y, 5, 2), signal.convolve(y, y, method="direct")], y)
same(lambda x: [Rotation.from_quat(x).as_matrix(), Rotation.from_quat(x).as_euler("xyz")], x)
same(lambda y: constants.convert_temperature(y, "C", "K"), y)
""",
}


EACH = """
import json, sys, traceback

failures = {}
for name, calls in json.load(sys.stdin).items():
    try:
        exec(calls, dict(globals()))
    except Exception:
        failures[name] = traceback.format_exc()
print(json.dumps(failures))
"""


def failures(program, calls, tmp_path):
    """The errors of each text of calls that fails, by its name; all run after a program, which imports the library."""
    environment = {"SCIPY_ARRAY_API": "1", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGINNING + program + EACH],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.matrix(least=0)
@pytest.mark.skipif(find_spec("scipy") is None, reason="SciPy is not installed")
def test_libraries_give_what_they_give_of_numpys_arrays(tmp_path):
    """In one process, which takes longer to import them than they take; a wrong value would be noticed."""
    program, calls = (SCIPY + SKLEARN, SCIPY_CALLS | SKLEARN_CALLS) if find_spec("sklearn") else (SCIPY, SCIPY_CALLS)
    wrong = {"wrong": "same(lambda x: x + (type(x) is xp.Array), x)"}
    found = failures(program, calls | wrong, tmp_path)
    assert "Not equal" in found.pop("wrong")
    assert not found, "\n".join(found.values())
