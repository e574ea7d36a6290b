"""The traits of ops, as users' ops import them: ``from optree.traits import ElementwiseOperator``."""

from optree.op.traits import *  # noqa: F403
