"""The former name of `optree.op.apply`, for one version."""

from optree.op.apply import *  # noqa: F403
