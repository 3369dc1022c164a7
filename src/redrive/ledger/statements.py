"""The fixed statements of the ledger, by name: each dialect has its own text, one query in one ``.sql`` file.

A statement's parameters, and the columns that it returns, mean the same in every dialect.
"""

from __future__ import annotations

from functools import cache


class Named(str):
    """The name of a statement. A :class:`~redrive.ledger.tx.Tx` looks up its own dialect's text."""

    __slots__ = ()


@cache
def sql(name: str) -> Named:
    """The statement ``<name>.sql``, whichever dialect it will run in."""
    return Named(name)
