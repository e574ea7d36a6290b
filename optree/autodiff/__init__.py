"""Derivatives of trees, which are trees: reverse mode, and products with Jacobians."""
