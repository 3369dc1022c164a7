"""Schemas for the ledgers under test: each is made once, and emptied for a later test instead of being made again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from redrive.ledger.opening import create
from redrive.ledger.postgres.connect import PostgresUrl

if TYPE_CHECKING:
    from redrive.ledger.postgres.ledger import PostgresLedger

_EMPTY = """
DO $$
DECLARE
  thing text;
BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR thing IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = '{schema}' LOOP
    EXECUTE 'DELETE FROM ' || thing;
  END LOOP;
  FOR thing IN SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences
               WHERE schemaname = '{schema}' AND last_value IS NOT NULL LOOP
    EXECUTE 'ALTER SEQUENCE ' || thing || ' RESTART';
  END LOOP;
END
$$
"""


class _Used:
    """A schema, what it held when it was new, who uses it, and for which test."""

    def __init__(self, name: str, seeds: dict[str, str], test: str) -> None:
        self.name = name
        self.seeds = seeds
        self.test = test
        self.users: list[PostgresLedger] = []

    def free_for(self, test: str) -> bool:
        return self.test != test and all(user._closed for user in self.users)


class Schemas:
    """The schemas of one database. ``url`` is as ledgers are opened, without a schema."""

    def __init__(self, url: str, environment: str) -> None:
        self._url = url
        self._environment = environment
        self._all: list[_Used] = []
        self._at: dict[Path, _Used] = {}

    def url(self, name: str) -> str:
        return f"{self._url}{'&' if '?' in self._url else '?'}schema={name}"

    def fresh(self, place: Path, clock: Callable[[str], Callable[[], int]]) -> str:
        """A schema with a ledger that is as after its creation; ``clock`` makes a schema's clock, at its beginning."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        used = next((each for each in self._all if each.free_for(test)), None)
        if used is None:
            name = f"t{len(self._all)}"
            create(self.url(name), self._environment, clock(name))
            used = _Used(name, self._seeds(name), test)
            self._all.append(used)
        else:
            used.test = test
            used.users.clear()
            self._empty(used)
        self._at[place] = used
        return used.name

    def known(self, place: Path) -> str:
        """The schema of a place that has one."""
        return self._at[place].name

    def opened(self, place: Path, ledger: PostgresLedger) -> None:
        """Until this is closed, nobody else is given the place's schema."""
        self._at[place].users.append(ledger)

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(PostgresUrl.parse(self._url).conninfo, prepare_threshold=None)

    def _seeds(self, name: str) -> dict[str, str]:
        with self._connect() as conn:
            tables = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [name]).fetchall()
            text = sql.SQL("SELECT jsonb_agg(t)::text FROM {} t")
            rows = {table: conn.execute(text.format(sql.Identifier(name, table))).fetchone() for (table,) in tables}
        return {table: row[0] for table, row in rows.items() if row and row[0] is not None}

    def _empty(self, used: _Used) -> None:
        with self._connect() as conn:
            conn.execute(_EMPTY.replace("{schema}", used.name).encode())
            for table, rows in used.seeds.items():
                name = sql.Identifier(used.name, table)
                text = "INSERT INTO {0} OVERRIDING SYSTEM VALUE SELECT * FROM jsonb_populate_recordset(NULL::{0}, {1})"
                conn.execute(sql.SQL(text).format(name, sql.Literal(rows)))
