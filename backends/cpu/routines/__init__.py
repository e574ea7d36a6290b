"""Routines in C: each a driver in Python beside the file that it compiles."""
