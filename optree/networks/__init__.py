"""Operations of networks: convolution, pools, normalisation, attention and recurrent networks."""

from typing import Any

from optree.locks import import_later

__all__ = [
    "attention",
    "columns",
    "convolution",
    "network",
    "pooling",
    "recurrent",
    "standardization",
    "vision",
    "windows",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_later(f"optree.networks.{name}")
    raise AttributeError(f"module 'optree.networks' has no attribute {name!r}")
