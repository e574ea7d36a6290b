"""A check that the package `optree` is op-tree's own, made before anything of it is imported by name."""

import optree
from optree.installation import refuse_overwritten

refuse_overwritten(optree)
