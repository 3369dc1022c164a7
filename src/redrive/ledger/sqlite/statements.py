"""The fixed statements of the SQLite ledger: one query, one named ``.sql`` file.

The files number their parameters (``?1``), so that one can be used twice and each can be explained. Python's sqlite3
takes a sequence for nameless parameters only (3.14 refuses it for numbered ones), so the numbers are taken out here,
and :func:`arranged` puts the values in the order of the question marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from redrive.ledger.statements import Named

_ROOT: Final = files("redrive.ledger.sqlite") / "sql"
_NUMBERED: Final = re.compile(r"\?(\d+)")
_COMMENT: Final = re.compile(r"--[^\n]*")


class Statement(str):
    """SQL with nameless parameters. ``order`` says which value each takes; None when they come one by one."""

    order: tuple[int, ...] | None


@cache
def sql(name: str) -> Statement:
    """The statement in ``sql/<name>.sql``, without its comments."""
    return numbered((_ROOT / f"{name}.sql").read_text(encoding="utf-8"))


def numbered(text: str) -> Statement:
    """A statement whose parameters are numbered, made ready for :func:`arranged`."""
    bare = "\n".join(line for line in _COMMENT.sub("", text).splitlines() if line.strip())
    order = tuple(int(number) - 1 for number in _NUMBERED.findall(bare))
    statement = Statement(_NUMBERED.sub("?", bare))
    statement.order = None if order == tuple(range(len(order))) else order
    return statement


def arranged(statement: str, params: Sequence[Any]) -> Sequence[Any]:
    """``params`` as the statement's question marks want them."""
    order = getattr(statement, "order", None)
    return params if order is None else [params[index] for index in order]


def text_of(statement: str) -> str:
    """SQLite's text of a statement that is given by its name; any other text as it is."""
    return sql(statement) if type(statement) is Named else statement
