"""What a statement needs of a transaction, whichever database and driver it runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

Row = tuple[Any, ...]
Params = Sequence[Any]
Dialect = Literal["sqlite", "postgres"]
T = TypeVar("T")


class Tx(Protocol):
    """An open transaction. A statement is a :class:`~redrive.ledger.statements.Named`, or text in its dialect."""

    @property
    def dialect(self) -> Dialect:
        """Which database this is."""
        ...

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        """All rows of one statement."""
        ...

    def run(self, sql: str, params: Params = ()) -> int:
        """Run one statement; the number of rows it changed."""
        ...

    def post(self, sql: str, params: Params = ()) -> None:
        """Run one statement whose count nobody needs: it may be sent without waiting for its answer."""
        ...

    def many(self, sql: str, params: Sequence[Params]) -> int:
        """Run one statement for each set of parameters; the number of rows changed in all."""
        ...

    def savepoint(self) -> AbstractContextManager[Undo]:
        """A part of the transaction that an exception, or :meth:`Undo.undo`, undoes by itself."""
        ...

    def refused(self, exc: Exception) -> bool:
        """Whether the database itself refused a change: a CHECK, a trigger, a unique index."""
        ...


class Undo(Protocol):
    """A savepoint that is open."""

    def undo(self) -> None:
        """Undo what was done since; the savepoint stays open."""
        ...


Operation = Callable[[Any, int], T]
"""Receives the open :class:`Tx` and its ledger time (microseconds UTC)."""
