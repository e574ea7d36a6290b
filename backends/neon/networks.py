"""Batch normalisation, word vectors, and recurrent steps, by neon's names: eager calls on buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.neon.convolution import blended, check_sizes
from backends.neon.pooling import Pools
from optree.ops.indexing import Embedding
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand, Variable


class Transform:
    """A transform of neon's front end as a key: equal to those of its class and parameters.

    `call`: from operands to a tree, with a method ``bprop``.
    """

    def __init__(self, call: Any) -> None:
        self.call = call
        try:
            self.facts = (call.__class__, *sorted(item for item in vars(call).items() if item[0] != "name"))
            hash(self.facts)
        except TypeError:  # without attributes, or with those that are no keys: equal to itself alone
            self.facts = (call,)

    def __hash__(self) -> int:
        return hash(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transform) and self.facts == other.facts


class Networks(Pools):
    """Parts of networks on a backend in neon's mode."""

    def compound_fprop_bn(
        self,
        x: Tensor,
        xsum: Tensor,
        xvar: Tensor,
        gmean: Tensor,
        gvar: Tensor,
        gamma: Tensor,
        beta: Tensor,
        y: Tensor,
        eps: float,
        rho: float,
        compute_batch_sum: bool,
        accumbeta: float = 0.0,
        relu: bool = False,
        threads: object = None,
        repeat: int = 1,
        binary: bool = False,
        inference: bool = False,
        outputs: object = None,
        layer: object = None,
    ) -> None:
        """Write the rows of x, normalised by their own statistics, times gamma, plus beta, into y.

        `xsum` holds the sums of the rows for `compound_bprop_bn`; with `compute_batch_sum` they are computed here.
        `xvar` gets the variances, and the running averages `gmean` and `gvar` are updated with momentum rho. With
        `inference`, the running averages normalise, and only y is written.
        """
        check_sizes("compound_fprop_bn", y=(y, x.size))
        if inference:
            self.replay("compound_fprop_bn", _bn_inference, float(eps), y, x, gmean, gvar, gamma, beta, accumbeta)
            return
        key = (float(eps), bool(relu), bool(compute_batch_sum), bool(binary))
        factors = gamma, beta, accumbeta, rho, 1 - rho
        self.replay("compound_fprop_bn", _bn, key, y, x, xsum, xvar, gmean, gvar, *factors)

    def compound_bprop_bn(
        self,
        delta_out: Tensor,
        grad_gamma: Tensor,
        grad_beta: Tensor,
        delta_in: Tensor,
        x: Tensor,
        xsum: Tensor,
        xvar: Tensor,
        gamma: Tensor,
        eps: float,
        threads: object = None,
        repeat: int = 1,
        binary: bool = False,
        layer: object = None,
    ) -> None:
        """Write the derivatives of `compound_fprop_bn` by x, gamma and beta, times errors `delta_in`."""
        if isinstance(threads, bool):  # the order of neon's CPU backend
            binary = threads
        check_sizes("compound_bprop_bn", delta_out=(delta_out, x.size), delta_in=(delta_in, x.size))
        key = (float(eps), bool(binary))
        buffers = delta_out, grad_gamma, grad_beta
        self.replay("compound_bprop_bn", _bn_gradient, key, *buffers, delta_in, x, xsum, xvar, gamma)

    def compound_bprop_lut(
        self,
        nin: int,
        inputs: Tensor,
        error: Tensor,
        error_t: Tensor,
        dW: Tensor,
        pad_idx: int | None,
        alpha: float = 1.0,
        beta: float = 0,
    ) -> None:
        """Add the columns of `error` to the rows of `dW` that the ids `inputs` name, but for `pad_idx`.

        `error_t`, of the shape of the transposed error, gets that.
        """
        self.replay("compound_bprop_lut", _lut, pad_idx, dW, error_t, inputs, error)

    # Recurrent steps

    def compound_rnn_unroll_fprop(
        self,
        W_recur: Tensor,
        h_prev_s: Sequence[Tensor],
        h_ff_s: Sequence[Tensor],
        h_s: Sequence[Tensor],
        bias: Tensor,
        nout: int,
        num_steps: int,
        num_used_steps: int | None,
        activation: object,
        reverse: bool = False,
    ) -> None:
        """Write ``activation(W_recur @ h_prev + h_ff + bias)`` into each h, in order, or backwards."""
        used = _used(num_steps, num_used_steps)
        steps = list(zip(h_prev_s[:used], h_ff_s[:used], h_s[:used], strict=False))
        key = Transform(activation)
        for h_prev, h_ff, h in reversed(steps) if reverse else steps:
            self.replay("compound_rnn_unroll_fprop", _rnn_step, key, h, W_recur, h_prev, h_ff, bias)

    def compound_rnn_unroll_bprop(
        self,
        W_recur: Tensor,
        delta_prev_s: Sequence[Tensor],
        delta_s: Sequence[Tensor],
        h_s: Sequence[Tensor],
        nout: int,
        num_steps: int,
        num_used_steps: int | None,
        activation: object,
        reverse: bool = True,
    ) -> None:
        """Multiply each delta by the activation's derivative at h, and add ``W_recur @ delta`` to the one before."""
        used = _used(num_steps, num_used_steps)
        steps = list(zip(delta_prev_s, delta_s, h_s[:used], strict=False))
        key = Transform(activation)
        for delta_prev, delta, h in reversed(steps) if reverse else steps:
            self.replay("compound_rnn_unroll_bprop", _rnn_delta, key, delta, h)
            self.compound_dot(W_recur, delta, delta_prev, beta=1.0)

    def compound_rnn_unroll_fprop_bibnrnn(
        self,
        ngLayer: object,
        h_buffer_all: object,
        h_ff_buffer: object,
        W_recur_f: Any,
        h_prev: Any,
        h_ff_f: Any,
        h_f: Any,
        b_f: Any,
        W_recur_b: Any,
        h_next: Any,
        h_ff_b: Any,
        h_b: Any,
        b_b: Any,
        nout: int,
        nsteps: int,
        used_nsteps: int | None,
        activation: object,
    ) -> None:
        """`compound_rnn_unroll_fprop` forwards, and backwards with the second weights."""
        steps = nout, nsteps, used_nsteps, activation
        self.compound_rnn_unroll_fprop(W_recur_f, h_prev, h_ff_f, h_f, b_f, *steps, False)
        self.compound_rnn_unroll_fprop(W_recur_b, h_next, h_ff_b, h_b, b_b, *steps, True)

    def compound_rnn_unroll_bprop_bibnrnn(
        self,
        ngLayer: object,
        error: Any,
        in_deltas_f: Any,
        prev_in_deltas: Any,
        in_deltas_b: Any,
        next_in_deltas: Any,
        W_recur_f: Any,
        W_recur_b: Any,
        h_f: Any,
        h_b: Any,
        nout: int,
        nsteps: int,
        used_nsteps: int | None,
        activation: object,
        h_buffer_all: object,
    ) -> None:
        """`compound_rnn_unroll_bprop` of both directions."""
        steps = nout, nsteps, used_nsteps, activation
        self.compound_rnn_unroll_bprop(W_recur_f.T, prev_in_deltas, in_deltas_f, h_f, *steps, True)
        self.compound_rnn_unroll_bprop(W_recur_b.T, next_in_deltas, in_deltas_b, h_b, *steps, False)


def _used(num_steps: int, num_used_steps: int | None) -> int | None:
    return num_used_steps if num_used_steps is not None and num_used_steps < num_steps else None


# The trees, from a key and operands to pairs of a target and a value


def _rnn_step(transform: Transform, h: Any, weights: Any, h_prev: Any, h_ff: Any, bias: Any) -> list[tuple[Any, Any]]:
    return [(h, transform.call(f.dot(weights, h_prev) + h_ff + bias))]


def _rnn_delta(transform: Transform, delta: Any, h: Any) -> list[tuple[Any, Any]]:
    factor = transform.call.bprop(h)
    return [(delta, factor * delta)] if isinstance(factor, Variable) or factor != 1 else []


def _bn_inference(
    epsilon: Any, y: Any, x: Any, mean: Any, variance: Any, gamma: Any, beta: Any, accumulate: Any
) -> list[tuple[Any, Any]]:
    value = (x - mean) / f.sqrt(variance + epsilon) * gamma + beta
    return [(y, blended(f.reshape(value, y.shape), y, 1, accumulate))]


def _bn(
    key: Any,
    y: Variable,
    x: Variable,
    xsum: Variable,
    xvar: Variable,
    gmean: Variable,
    gvar: Variable,
    gamma: Variable,
    beta: Operand,
    accumulate: Operand,
    rho: Operand,
    more: Operand,
) -> dict[Any, Any]:
    epsilon, relu, computes_sum, binary = key
    times = f.shift if binary else f.mul
    x = f.cast(x, xsum.dtype)
    total = f.sum(x, axis=1) if computes_sum else xsum
    mean = total * (1 / x.shape[1])
    centred = x - mean
    variance = f.mean(times(centred, centred), axis=1)
    value = times(times(centred, 1 / f.sqrt(variance + epsilon)), gamma) + beta
    value = f.maximum(value, 0) if relu else value
    return {
        **({xsum: total} if computes_sum else {}),
        gmean: gmean * rho + mean * more,
        xvar: variance,
        gvar: gvar * rho + variance * more,
        y: blended(f.reshape(value, y.shape), y, 1, accumulate),
    }


def _bn_gradient(
    key: Any, delta_out: Any, grad_gamma: Any, grad_beta: Any, delta_in: Any, x: Any, xsum: Any, xvar: Any, gamma: Any
) -> dict[Any, Any]:
    times = f.shift if key[1] else f.mul
    share = 1 / x.shape[1]
    inverse = 1 / f.sqrt(xvar + key[0])
    value = times(f.cast(x, xsum.dtype) - xsum * share, inverse)
    delta = f.cast(f.reshape(delta_in, x.shape), xsum.dtype)
    by_gamma, by_beta = f.sum(value * delta, axis=1), f.sum(delta, axis=1)
    spread = delta - (times(value, by_gamma) + by_beta) * share
    return {
        grad_gamma: by_gamma,
        grad_beta: by_beta,
        delta_out: f.reshape(times(times(spread, gamma), inverse), delta_out.shape),
    }


def _lut(pad_idx: Any, dW: Any, error_t: Any, inputs: Any, error: Any) -> list[tuple[Any, Any]]:
    ids, turned = f.reshape(inputs, (-1, 1)), f.reshape(error_t, error.shape[::-1])
    if pad_idx is not None:
        turned = f.where(f.eq(ids, pad_idx), f.fill_like(turned, 0), turned)
    picked = Embedding.make()(dW, ids)
    added = picked.op.grad(picked.inputs, [turned])[0]
    return [(error_t, f.reshape(f.transpose(error), error_t.shape)), (dW, dW + added)]
