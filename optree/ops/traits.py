"""The former name of `optree.op.traits`, for one version."""

from optree.op.traits import *  # noqa: F403
