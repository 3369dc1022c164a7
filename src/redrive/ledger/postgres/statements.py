"""The fixed statements of the PostgreSQL ledger: one query, one named ``.sql`` file, in three drivers' dialects.

The files number their parameters (``$1``), as PostgreSQL does, and name the schema ``{schema}``: the one substitution.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

_encoded: Final = json.JSONEncoder(separators=(",", ":")).encode
_ROOT: Final = files("redrive.ledger.postgres") / "sql"
_COMMENT: Final = re.compile(r"--[^\n]*")
_NUMBERED: Final = re.compile(r"\$(\d+)")


class Text(NamedTuple):
    """One statement, ready for each kind of driver."""

    dollar: str
    """With ``$1``: for drivers that bind on the server by number."""
    percent: str
    """With ``%s``, in order of appearance: for drivers of PEP 249's ``format``."""
    order: tuple[int, ...]
    """Which parameter each ``%s`` takes."""


@cache
def text_of(name: str, schema: str) -> Text:
    """The statement in ``sql/<name>.sql``, without its comments."""
    return rendered((_ROOT / f"{name}.sql").read_text(encoding="utf-8"), schema)


def rendered(source: str, schema: str) -> Text:
    """A statement with numbered parameters, for each kind of driver."""
    bare = "\n".join(line for line in _COMMENT.sub("", source).splitlines() if line.strip())
    dollar = bare.replace("{schema}", schema)
    order = tuple(int(number) - 1 for number in _NUMBERED.findall(dollar))
    return Text(dollar, _NUMBERED.sub("%s", dollar.replace("%", "%%")), order)


def array(values: Iterable[int]) -> str:
    """An array literal: every driver sends text as it is, and no driver builds an array faster than this."""
    return "{" + _encoded(list(values))[1:-1] + "}"
