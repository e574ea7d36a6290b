"""Functions written as C libraries: the calls of their steps for all sizes, and the files of a library."""
