"""The former name of `optree.op.op`, for one version."""

from optree.op.op import *  # noqa: F403
