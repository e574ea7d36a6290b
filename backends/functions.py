"""Every function of operands as a method of backends; `functions.pyi` beside it has their types, from the registry."""


class Functions:
    """The base of backends by which type checkers and editors know their methods, which are made at their first use."""
