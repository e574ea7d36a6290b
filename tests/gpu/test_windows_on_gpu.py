"""Pools, resized images and regions on a GPU by kernels of our own, against ops' own values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.nvrtc import compile_all, needs_nvrtc

from backends.gpu import vision
from optree import function, grad
from optree.errors import OperandError

#: Images and parameters of pools: every rank and layout, windows that overlap, leave gaps, and reach beyond the image.
POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 8, 10), {"window": 2}),
    "overlapping": ((2, 3, 9, 8), {"window": 3, "stride": 2, "padding": 1}),
    "channels last": ((2, 7, 6, 5), {"window": (2, 3), "stride": (3, 1), "padding": "same", "layout": "NHWC"}),
    "beyond the end": ((1, 2, 7, 7), {"window": 3, "stride": 2, "ceil": True}),
    "gaps": ((5, 40), {"window": 2, "stride": 5, "axes": 1}),
    "wide windows": ((2, 3, 11, 13), {"window": (9, 7), "stride": 2, "padding": (4, 3)}),
    "volumes, and channels": ((3, 4, 3, 4, 2), {"window": (2, 2, 3, 2), "stride": 1, "padding": (0, 1, 1, 0)}),
    "every axis": ((6, 5), {"window": (3, 2), "stride": (2, 1), "padding": ((1, 2), (0, 1)), "axes": (0, 1)}),
}
POOLS["volumes, and channels"][1]["axes"] = (0, 1, 2, 3)


def images(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers, of which many are equal, with nans and infinities among them."""
    rng = np.random.RandomState(0)
    found = rng.randint(-4, 5, size=shape).astype(dtype)
    found.flat[::17] = np.nan
    found.flat[5::23] = -np.inf
    return found


def check(tree: Any, expected: np.ndarray, gpu: Any, what: str) -> None:
    """A tree's value against one in float64, or one of integers, by one kernel or more and nothing on the host."""
    launches, hosts = gpu.kernels.counts.launches, gpu.stats()["host_calls"]
    got = tree.asnumpyarray()
    assert gpu.kernels.counts.launches > launches, what
    assert gpu.stats()["host_calls"] == hosts, what
    assert got.shape == expected.shape, what
    rtol = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3}.get(str(got.dtype), 0)
    np.testing.assert_allclose(got.astype("float64"), expected, rtol=rtol, atol=rtol, err_msg=what)


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float32") for case in POOLS), ("overlapping", "float64"), ("overlapping", "float16")]
)
def test_a_pool_and_its_derivatives_by_kernels(case: str, dtype: str, gpu: Any) -> None:
    shape, props = POOLS[case]
    x = images(shape, dtype)
    finite = np.nan_to_num(x, posinf=1, neginf=1)
    like, whole = gpu.array(x, dtype), gpu.array(finite, dtype)
    node = gpu.max_pool(like, **props)
    op = node.op
    indices = gpu.argmax_pool(like, **props)
    places = indices.op.value(x)
    check(node, op.value(x.astype("float64")), gpu, "max_pool")
    check(indices, places, gpu, "argmax_pool")
    delta = np.random.RandomState(1).randint(-8, 9, size=places.shape).astype(dtype)
    deltas, found = gpu.array(delta, dtype), gpu.array(places, "int32")
    unpool = gpu.max_unpool(deltas, found, like, **props)
    check(unpool, unpool.op.value(delta.astype("float64"), places, x), gpu, "max_unpool")
    taken = gpu.take_pool(whole, found, **props)
    check(taken, taken.op.value(finite.astype("float64"), places), gpu, "take_pool")
    for counts in (False, True):
        mean = gpu.avg_pool(whole, **props, count_padding=counts)
        check(mean, mean.op.value(finite.astype("float64")), gpu, f"avg_pool, {counts}")
        shares = gpu.avg_unpool(deltas, like, **props, count_padding=counts)
        check(shares, shares.op.value(delta.astype("float64"), x.astype("float64")), gpu, f"avg_unpool, {counts}")


def test_images_that_are_no_contiguous_arrays_and_indices_that_are_wrong(gpu: Any) -> None:
    x = np.arange(48, dtype="float32").reshape(6, 8)
    tensor = gpu.array(x)
    check(gpu.max_pool(tensor.T, 2, axes=1), x.T.reshape(8, 3, 2).max(2), gpu, "transposed")
    z = gpu.zeros((3, 8))
    z[:] = gpu.max_pool(tensor, 2, axes=0) + tensor[::2]
    np.testing.assert_array_equal(z.get(), x[1::2] + x[::2])
    places = gpu.array([[0, 5, -1, 1]], "int32")
    line = gpu.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
    check(gpu.take_pool(line, places, 2, axes=1), np.array([[1.0, 0, 0, 8]]), gpu, "indices beyond the window")


#: Images and parameters of `resize`: up, down, to the same size and to one element, in every rank and layout.
RESIZED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "up": ((2, 3, 4, 5), {"size": (9, 8)}),
    "down": ((2, 3, 9, 11), {"size": (4, 3)}),
    "nearest": ((1, 2, 5, 7), {"size": (12, 3), "method": "nearest"}),
    "corners": ((1, 4, 6, 2), {"size": (7, 11), "align_corners": True, "layout": "NHWC"}),
    "one": ((1, 1, 4, 3, 2), {"size": (1, 3, 5), "align_corners": True}),
    "line": ((3, 8, 2), {"scale": 2.5, "layout": "NWC", "method": "nearest", "align_corners": True}),
    "of one": ((2, 1, 1, 2), {"scale": (3.0, 0.5)}),
}


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float32") for case in RESIZED), ("up", "float64"), ("up", "float16")]
)
def test_images_are_resized_by_kernels(case: str, dtype: str, gpu: Any) -> None:
    shape, props = RESIZED[case]
    rng = np.random.RandomState(0)
    x = rng.normal(size=shape).astype(dtype)
    tensor = gpu.array(x, dtype)
    node = gpu.resize(tensor, **props)
    check(node, node.op.value(x.astype("float64")), gpu, "resize")
    delta = rng.normal(size=node.shape).astype(dtype)
    gradient = gpu.resize_input(gpu.array(delta, dtype), tensor, **props)
    check(gradient, gradient.op.value(delta.astype("float64"), x.astype("float64")), gpu, "resize_input")


#: Boxes within the images, beyond them, empty, of one element, and of the other image.
BOXES = [[0, 0, 0, 4, 3], [1, 1, 1, 2, 2], [1, 3, 2, 9, 9], [0, -4, -3, 2.5, 1.5], [1, 30, 30, 40, 40], [0, 3, 3, 1, 1]]


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize(
    ("layout", "props", "dtype"),
    [
        ("NCHW", {"size": (2, 3)}, "float32"),
        ("NHWC", {"size": 3, "scale": 0.5, "samples": 1, "aligned": False}, "float32"),
        ("CHWN", {"size": (1, 4), "scale": 1.3, "samples": 3}, "float64"),
        ("NCHW", {"size": 2}, "float16"),
    ],
)
def test_regions_by_kernels(layout: str, props: dict[str, Any], dtype: str, gpu: Any) -> None:
    rng = np.random.RandomState(0)
    sizes = dict(zip("NCHW", (2, 3, 6, 7), strict=True))
    x = rng.randint(-9, 9, size=[sizes[axis] for axis in layout]).astype(dtype)
    tensor, boxes = gpu.array(x, dtype), gpu.array(BOXES)
    given = np.array(BOXES)
    aligned = gpu.roi_align(tensor, boxes, **props, layout=layout)
    check(aligned, aligned.op.value(x.astype("float64"), given), gpu, "roi_align")
    delta = rng.normal(size=aligned.shape).astype(dtype)
    gradient = gpu.roi_align_input(gpu.array(delta, dtype), boxes, tensor, **props, layout=layout)
    check(gradient, gradient.op.value(delta.astype("float64"), given, x.astype("float64")), gpu, "roi_align_input")
    props = {name: value for name, value in props.items() if name in ("size", "scale")}
    x.flat[::7] = np.nan
    places = gpu.argmax_roi(gpu.array(x, dtype), boxes, **props, layout=layout)
    check(places, places.op.value(x, given), gpu, "argmax_roi")


def test_a_box_of_no_image_is_refused_and_no_box_is_none(gpu: Any) -> None:
    x = gpu.ones((2, 1, 4, 4))
    with pytest.raises(OperandError, match="box 1 is of image 2, and there are 2"):
        gpu.roi_align(x, gpu.array([[0, 0, 0, 1, 1], [2, 0, 0, 1, 1]]), 2).asnumpyarray()
    nothing = gpu.zeros((0, 5))
    assert gpu.roi_align(x, nothing, 2).asnumpyarray().shape == (0, 1, 2, 2)
    assert not gpu.roi_align_input(gpu.zeros((0, 1, 2, 2)), nothing, x).asnumpyarray().any()


def test_regions_in_a_cuda_graph_tell_of_wrong_boxes_before_anything_is_written(gpu: Any) -> None:
    x = gpu.array(np.arange(32.0).reshape(2, 1, 4, 4), name="x")
    boxes = gpu.array([[0, 0, 0, 2, 2], [1, 1, 1, 3, 3]], name="boxes")
    cost = gpu.sum(gpu.square(gpu.roi_align(gpu.resize(x, (4, 4)), boxes, 2)))
    step = function([], cost, updates={x: x - 0.001 * grad(cost, x)})
    losses = [float(step().item()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert gpu.stats()["graphs"]["replays"] >= 2
    assert gpu.stats()["host_calls"] == 0
    before = x.get()
    boxes[1, 0] = 2
    with pytest.raises(OperandError, match="box 1 is of image 2"):
        step()
    np.testing.assert_array_equal(x.get(), before)


def test_a_network_of_pools_learns_in_one_cuda_graph(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    x = gpu.array(rng.normal(size=(2, 3, 6, 6)), name="x")
    y = gpu.avg_pool(gpu.max_pool(x * 1.0, 2, stride=1), 3, padding=1)
    cost = gpu.mean(gpu.square(y - 1))
    step = function([], cost, updates={x: x - 2.0 * grad(cost, x)})
    losses = [float(step().item()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert gpu.stats()["graphs"]["replays"] >= 3
    assert gpu.stats()["host_calls"] == 0


@needs_nvrtc
def test_nvrtc_compiles_every_kernel_without_spilling() -> None:
    for compiled in compile_all([vision.regions_source(np.dtype("float64"), "int")], "sm_90"):
        for usage in compiled.usage.values():
            assert usage.spill_stores == usage.spill_loads == usage.stack == 0
            assert usage.registers <= 64, "four blocks of 256 threads are resident on a multiprocessor"
