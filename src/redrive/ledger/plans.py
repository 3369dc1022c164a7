"""Reads of people and tools, planned for the ledger as it will be and not as it was when it was last analysed."""

from __future__ import annotations

from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx


def steady(tx: Tx, *, sort: bool = True) -> None:
    """Have the rest of this transaction walk indexes; without ``sort``, in their order. SQLite is told in each
    statement.
    """
    if tx.dialect == "postgres":
        tx.rows(sql("steady_plans"), ("on" if sort else "off",))
