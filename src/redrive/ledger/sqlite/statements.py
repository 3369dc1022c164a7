"""The fixed statements of the SQLite ledger: one query, one named ``.sql`` file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

_ROOT: Final = files("redrive.ledger.sqlite") / "sql"


@cache
def sql(name: str) -> str:
    """The statement in ``sql/<name>.sql``, without its leading comment."""
    lines = (_ROOT / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).strip()
