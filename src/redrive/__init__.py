"""Background delivery that gives up on purpose and comes back under control.

``Redrive`` is the one object a user makes; everything else here is what its handlers raise and its callers
catch. Importing this package loads no driver, HTTP client, command line or web module: names are resolved
on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redrive.app import Context, Redrive
    from redrive.domain.identity import UNIQUE
    from redrive.domain.policy import Jitter, OnUnknown, Policy
    from redrive.domain.signals import NoOp, Permanent, Retry, Unknown
    from redrive.errors import Conflict, InvalidInput, NotFound, RedriveError

__version__ = "0.2.0"

__all__ = [
    "UNIQUE",
    "Conflict",
    "Context",
    "InvalidInput",
    "Jitter",
    "NoOp",
    "NotFound",
    "OnUnknown",
    "Permanent",
    "Policy",
    "Redrive",
    "RedriveError",
    "Retry",
    "Unknown",
    "__version__",
]

_HOME = {
    "Redrive": "redrive.app",
    "Context": "redrive.app",
    "UNIQUE": "redrive.domain.identity",
    "Policy": "redrive.domain.policy",
    "Jitter": "redrive.domain.policy",
    "OnUnknown": "redrive.domain.policy",
    "Retry": "redrive.domain.signals",
    "Permanent": "redrive.domain.signals",
    "NoOp": "redrive.domain.signals",
    "Unknown": "redrive.domain.signals",
    "RedriveError": "redrive.errors",
    "InvalidInput": "redrive.errors",
    "Conflict": "redrive.errors",
    "NotFound": "redrive.errors",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'redrive' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
