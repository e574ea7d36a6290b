"""Functions, and the modes that they run in."""
