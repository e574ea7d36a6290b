"""Matrix products, sums and the binary family by neon's names: eager calls on buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.neon.convolution import Convolutions, blended, check_sizes
from optree.errors import KindError, SizeError, brief
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.types import Axis
from optree.tree.variable import Operand, Variable


class Dense(Convolutions):
    """Products on a backend in neon's mode."""

    def compound_dot(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        bsum: Tensor | None = None,
        repeat: int = 1,
        size: Tensor | None = None,
    ) -> Tensor:
        """Write ``alpha * dot(A, B) + beta * C`` into C, the product rectified if asked for, and return C.

        `bsum` gets the sums of the rows of what is stored.

        Raises
        ------
        SizeError, KindError
            If the shapes do not fit, or the dtypes differ.
        """
        _check_product("compound_dot", A, B, C)
        self.replay("compound_dot", _compound_dot, bool(relu), C, A, B, bsum, alpha, beta)
        return C

    def xnor_compound_dot(self, A: Tensor, B: Tensor, C: Tensor, beta: float = 0.0, bsum: Tensor | None = None) -> Any:
        """`compound_dot` of values that are all 1 or -1, which is what a product of their bits computes."""
        return self.compound_dot(A, B, C, beta=beta, bsum=bsum)

    def batched_dot(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        repeat: int = 1,
        size: Tensor | None = None,
    ) -> Tensor:
        """Write ``alpha * A[x] @ B[x] + beta * C[x]`` for each x into C; into a matrix C their sum. Return C.

        One of A and B may be a matrix, which then serves each x.

        Raises
        ------
        SizeError
            If both are matrices, or the shapes do not fit.
        """
        shapes = f"{A.shape} and {B.shape} do not multiply into {C.shape}"
        if max(A.ndim, B.ndim) != 3:
            raise SizeError(f"batched_dot: one operand has three dimensions at least: {shapes}")
        count = (A if A.ndim == 3 else B).shape[0]
        wanted = (A.shape[-2], B.shape[-1])
        batches = {x.shape[0] for x in (A, B, C) if x.ndim == 3}
        if A.shape[-1] != B.shape[-2] or C.shape[-2:] != wanted or batches != {count}:
            raise SizeError(f"batched_dot: {shapes}")
        self.replay("batched_dot", _batched_dot, bool(relu), C, A, B, alpha, beta)
        return C

    def update_fc_bias(self, err: Tensor, out: Tensor) -> None:
        """Write the sums of the rows of errors into `out`."""
        check_sizes("update_fc_bias", out=(out, err.shape[0]))
        self.replay("update_fc_bias", _sum_rows, None, out, err)

    def add_fc_bias(self, inputs: Tensor, bias: Tensor) -> None:
        """Add a bias to each column of `inputs`."""
        check_sizes("add_fc_bias", bias=(bias, inputs.shape[0]))
        self.replay("add_fc_bias", _add_bias, None, inputs, bias)

    def copy_transpose(self, a: Tensor, out: Tensor, axes: Sequence[int] | None = None, repeat: int = 1) -> None:
        """Write `a` with its axes permuted, by default reversed, into `out`."""
        self.replay("copy_transpose", _transposed, None if axes is None else tuple(axes), out, a)

    def shift(self, ary: Tensor, shift_ary: Tensor, value: bool = True, out: Tensor | None = None) -> Any:
        """Multiply by powers of two, at once: `shift_ary` rounded to them, or with ``value=False`` two to the power.

        Without `out`, the value is in a new tensor of the shape of `ary`.
        """
        tree = f.shift(self._operand(ary), shift_ary, value)
        if out is None:
            out = self.empty(ary.shape if isinstance(ary, Variable) else (1, 1))
        return out._assign(tree)

    def binarize(self, ary: Tensor, out: Tensor | None = None, stochastic: bool = True) -> Any:
        """Write each element as 1 or -1 into `out`, and return it: by chance, or by its sign."""
        if isinstance(out, bool):  # the order of neon's abstract method
            out, stochastic = (None if isinstance(stochastic, bool) else stochastic), out
        return super().binarize(ary, out, stochastic)

    def _operand(self, x: object) -> Any:
        return x if isinstance(x, Variable) else self.array(x)


def _check_product(what: str, a: Tensor, b: Tensor, c: Tensor) -> None:
    for x in (a, b, c):
        if not isinstance(x, Tensor):
            raise KindError(f"{what}: a tensor is wanted, not {brief(x)}")
    if {a.ndim, b.ndim, c.ndim} != {2} or a.shape[1] != b.shape[0] or c.shape != (a.shape[0], b.shape[1]):
        raise SizeError(f"{what}: {a.shape} and {b.shape} do not multiply into {c.shape}")
    if not a.dtype == b.dtype == c.dtype:
        raise KindError(f"{what}: the dtypes {a.dtype}, {b.dtype} and {c.dtype} differ")


# The trees, from a key and operands to pairs of a target and a value


def scaled_product(product: Tensor, old: Operand, relu: bool, alpha: Operand, beta: Operand) -> Any:
    """r(alpha * product) + beta * old, r being a rectifier if asked for."""
    value = product if alpha == 1 else product * alpha
    return blended(f.maximum(value, 0) if relu else value, old, 1, beta)


def _compound_dot(
    relu: bool, c: Variable, a: Variable, b: Variable, bsum: Variable, alpha: Operand, beta: Operand
) -> list[tuple[Any, Any]]:
    written = [(c, scaled_product(f.dot(a, b), c, relu, alpha, beta))]
    return written if bsum is None else [*written, (bsum, f.sum(c, axis=1))]


def _batched_dot(
    relu: bool, c: Variable, a: Variable, b: Variable, alpha: Operand, beta: Operand
) -> list[tuple[Any, Any]]:
    product = f.matmul(a, b)
    if c.ndim == 2:
        product = f.reshape(f.sum(product, axis=0), c.shape)
    return [(c, scaled_product(product, c, relu, alpha, beta))]


def _sum_rows(key: None, out: Variable, x: Variable) -> list[tuple[Any, Any]]:
    return [(out, f.reshape(f.sum(x, axis=1), out.shape))]


def _add_bias(key: None, x: Variable, bias: Variable) -> list[tuple[Any, Any]]:
    return [(x, x + f.reshape(bias, (x.shape[0], 1)))]


def _transposed(axes: Axis, out: Variable, x: Variable) -> list[tuple[Any, Any]]:
    return [(out, f.transpose(x, axes))]
