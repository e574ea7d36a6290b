"""The families of ops that few programs need, imported together when one of them is first asked for."""

from optree import registry
from optree.ops import (  # noqa: F401, imported to be registered
    activations,
    arrangement,
    attention,
    bits,
    collectives,
    columns,
    convolution,
    einsum,
    factorisation,
    interpolation,
    joining,
    linalg,
    loops,
    network,
    ordering,
    padding,
    polynomials,
    pooling,
    random,
    recurrent,
    scan,
    scattering,
    segments,
    softmax,
    standardization,
    vision,
    windows,
    writing,
)

registry.is_complete = True
