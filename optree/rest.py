"""The families of ops that few programs need, imported together when one of them is first asked for."""

from optree import registry
from optree.networks import (  # noqa: F401, imported to be registered
    attention,
    columns,
    convolution,
    network,
    pooling,
    recurrent,
    standardization,
    vision,
    windows,
)
from optree.numpy import (  # noqa: F401, imported to be registered
    arrangement,
    padding,
    polynomials,
)
from optree.ops import (  # noqa: F401, imported to be registered
    activations,
    bits,
    collectives,
    einsum,
    factorisation,
    interpolation,
    joining,
    linalg,
    loops,
    ordering,
    random,
    scan,
    scattering,
    segments,
    softmax,
    while_loop,
    writing,
)

registry.is_complete = True
