"""Allocation, neon's buffers: columns for vectors, one data type for arrays, and buffers that layers share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from backends.backend import Backend
from backends.neon.tensor import NeonTensor
from optree.errors import BackendError, OperandError, ParameterError, brief
from optree.op.traits import ElementwiseOperator
from optree.ops.contraction import ProductOperator
from optree.ops.joining import Concatenate
from optree.tree.tensor import Tensor
from optree.tree.types import DType, as_dtype

#: Ops of which a 1-D constant among the operands is a column.
COLUMNS: set[type] = {ElementwiseOperator, Concatenate, ProductOperator}


class Allocation(Backend):
    """The part of a backend in neon's mode that makes tensors."""

    is_neon = True
    tensor_cls = NeonTensor
    modes = ("neon", "caffe", None)
    #: CuPy, on a GPU.
    cupy: Any
    #: Whether leaves have been made that take the shape of the tensor they are assigned to.
    has_deferred = False

    def takes_columns(self, op: Any) -> bool:
        """Whether 1-D constants among an op's operands are columns."""
        return not COLUMNS.isdisjoint(type(op).__mro__)

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike | None = None, name: str | None = None, **placement: bool
    ) -> Any:
        """A new tensor of zeros, as neon's host memory was: its layers read some buffers before they write them."""
        tensor = super().empty(shape, dtype, name, **placement).fill(0)
        tensor.written = -1
        return tensor

    def array(self, values: object, dtype: DType = None, name: str | None = None, **placement: bool) -> Any:
        """A new tensor with the values of an array, list or number, cast to the backend's dtype, integers too."""
        return super().array(values, self.datatype if dtype is None else dtype, name, **placement)

    def iobuf(
        self,
        dim0: int | tuple[int, ...],
        x: Tensor | None = None,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        shared: Any = None,
        parallelism: Tensor | None = None,
    ) -> Any:
        """A buffer of zeros for a batch; `x` itself if it is given.

        Parameters
        ----------
        dim0 : int or tuple of int
            The size of a sample, n or (n,), for a buffer of (n, bsz); (a, b) gives (a, b * bsz), and three sizes or
            more their product and bsz.
        shared : Tensor, optional
            A tensor whose memory is taken, and set to zeros.

        Raises
        ------
        BackendError
            If the backend has no batch size.
        """
        if x is not None:
            return x
        if not self.batch_size:
            raise BackendError("iobuf needs a batch size: gen_backend(..., batch_size=n), or be.bsz = n")
        if isinstance(dim0, list):
            raise OperandError(f"iobuf: a size is an integer or a tuple of them, not {brief(dim0)}")
        sizes = dim0 if isinstance(dim0, tuple) else (dim0,)
        shape = (sizes[0], sizes[1] * self.batch_size) if len(sizes) == 2 else (prod(sizes), self.batch_size)
        buffer = self.empty(shape, dtype, name) if shared is None else shared.share(shape).fill(0)
        buffer.written = -1  # counts as uninitialised: trees on it mean batches to come
        return buffer

    def shared_iobuf_size(self, shape: Any, parallelism: Tensor | None = None) -> int:
        """The number of elements of a shape, for a buffer that several layers share."""
        return int(prod(shape)) if isinstance(shape, tuple | list) else int(shape)

    # Random numbers

    @property
    def rng_seed(self) -> int | None:
        """The seed; None if it is of the system's entropy."""
        return self._seed if isinstance(self._seed, int) else None

    @property
    def deterministic(self) -> bool:
        """Whether a seed was given."""
        return self.rng_seed is not None

    @property
    def init_rng_state(self) -> Any:
        """The state of `rng` after it was seeded."""
        return np.random.RandomState(self._seed).get_state()

    def rng_set_state(self, state: Any) -> None:
        """Restore the states that `rng_get_state` returned.

        Raises
        ------
        ParameterError
            If `state` has another form; nothing has changed then.
        """
        try:
            super().rng_set_state(state)
        except OperandError as error:
            raise ParameterError(str(error)) from None

    # The device

    @property
    def device_type(self) -> int:
        """0 for the CPU, 1 for a GPU."""
        return int(self.name == "gpu")

    @property
    def use_pinned_mem(self) -> bool:
        """Whether host memory is pinned: on a GPU."""
        return self.name == "gpu"

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The GPU's, such as (9, 0); (0, 0) on the CPU."""
        text = str(self._device.compute_capability) if self.name == "gpu" else "00"
        return int(text[:-1]), int(text[-1])

    @property
    def sm_count(self) -> int:
        """The GPU's multiprocessors; 0 on the CPU."""
        return int(self._device.attributes["MultiProcessorCount"]) if self.name == "gpu" else 0

    @property
    def gpu_memory_size(self) -> int:
        """The bytes of the GPU's memory; 0 on the CPU."""
        return int(self._device.mem_info[1]) if self.name == "gpu" else 0

    @property
    def _device(self) -> Any:
        return self.cupy.cuda.Device(self.device_id)

    #: neon's stream, which is CuPy's current one; its hint for kernels, and its switch of timings: of no effect.
    stream: None = None
    enable_winograd: Any = True
    bench: bool = False

    def set_caffe_compat(self) -> None:
        """Take Caffe's sizes of pools from now on."""
        self.compat_mode = "caffe"

    def check_caffe_compat(self) -> bool:
        """Whether pools have Caffe's sizes."""
        return self.compat_mode == "caffe"

    def is_mkl(self) -> bool:
        """False: there are no layouts of MKL's."""
        return False

    def cleanup_backend(self) -> None:
        """Nothing: the backend stays usable, and its memory is freed with it."""

    def begin(self, block: object, identifier: object) -> None:
        """Nothing: neon marked the phases of training by it."""

    def end(self, block: Tensor, identifier: Tensor) -> None:
        """Nothing: as `begin`."""

    def consume(self, buf_index: int, hostlist: list[Any], devlist: list[Any]) -> None:
        """Copy ``hostlist[buf_index]``, transposed, into the tensor ``devlist[buf_index]``, made at its first use."""
        if buf_index not in (0, 1):
            raise AssertionError(f"consume: buf_index is 0 or 1, not {brief(buf_index)}")
        turned = hostlist[buf_index].T
        if devlist[buf_index] is None:
            devlist[buf_index] = self.empty(turned.shape, as_dtype(turned.dtype))
        devlist[buf_index].set(np.ascontiguousarray(turned))
