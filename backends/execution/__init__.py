"""Execution on any backend: steps, specialisation, memory planning, and caches on disk."""
