"""refold runs multi-step agent work and never loses it. See docs/ARCHITECTURE.md for the code map.

What builds Blueprints (`refold.flowir.build`) can be had from here, `from refold import seq, step`: it is loaded when
it is asked for.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_BUILDERS = """
    add and_ approve assign blueprint branch call_extern div eq exists expr fanout gt gte in_ len_ lit loop lt lte mod
    mul ne not_ or_ path seq step sub try_ wait
"""
_HOMES = dict.fromkeys(_BUILDERS.split(), "refold.flowir.build")
"""Which module has what can be had from here."""
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  # one list of them is enough


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
