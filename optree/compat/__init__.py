"""APIs of other systems, implemented by op-tree."""
