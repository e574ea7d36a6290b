"""The families of ops that few programs need, imported together when one of them is first asked for."""

from importlib import import_module
from pkgutil import iter_modules

from optree import networks, numpy, ops, registry

for _package in (ops, numpy, networks):
    for _module in iter_modules(_package.__path__, f"{_package.__name__}."):
        import_module(_module.name)  # its ops and functions are registered

registry.is_complete = True
