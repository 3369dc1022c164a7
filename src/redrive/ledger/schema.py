"""The tables that searches read, for SQLAlchemy Core. Only what a search needs; the migrations are the schema."""

from __future__ import annotations

from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDialect
from sqlalchemy.sql.compiler import SQLCompiler

from redrive.ledger.tx import Params, Tx

metadata: Final = sa.MetaData()


def _table(name: str, integers: str, texts: str, blobs: str = "") -> sa.Table:
    columns: list[sa.Column[Any]] = [sa.Column(column, sa.Integer) for column in integers.split()]
    columns += [sa.Column(column, sa.Text) for column in texts.split()]
    columns += [sa.Column(column, sa.LargeBinary) for column in blobs.split()]
    return sa.Table(name, metadata, *columns)


delivery: Final = _table(
    "delivery",
    "seq event_seq envelope_version policy_version max_attempts deadline_at first_queued_at first_due_at first_hold",
    "handler tenant scope destination key content_type",
    "delivery_id",
)
state: Final = _table(
    "delivery_state",
    "seq lane priority disposition hold generation attempt max_attempts deadline_at available_at fence leased_by"
    " leased_until started_at deferrals ambiguous cancel_requested",
    "last_category",
)
event: Final = _table("event", "event_seq", "event_key event_type tenant", "event_id")
identity: Final = _table("identity", "seq", "", "delivery_id")
generation: Final = _table("generation", "seq generation policy_version", "")
worker: Final = _table("worker", "worker", "name")
dead_letter: Final = _table(
    "dead_letter",
    "dead_letter seq generation attempts first_at last_at ambiguous policy_version died_at",
    "state handler tenant scope destination cause category",
)
audit: Final = _table("audit", "audit", "action")


ENDS: Final = sa.case(
    (state.c.disposition == sa.literal(1, literal_execute=True), state.c.leased_until), else_=state.c.deadline_at
)
"""What PostgreSQL's index on live rows is on: when the lease ends or, while the delivery waits, its age."""


class _Compiler(SQLiteCompiler):
    """SQLite's, and a table may be ``INDEXED BY``."""

    def get_from_hint_text(self, table: object, text: str | None) -> str | None:
        return text


class _Dialect(SQLiteDialect):
    statement_compiler = _Compiler
    supports_statement_cache = True


_SQLITE: Final = _Dialect(paramstyle="qmark")
_POSTGRES: Final = PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


def compiled(tx: Tx, statement: sa.ClauseElement) -> tuple[str, Params]:
    """A statement's text in the transaction's dialect and its parameters in order, for :meth:`Tx.rows`."""
    options: dict[str, Any] = {"dialect": _SQLITE}
    if tx.dialect == "postgres":
        schema = {None: getattr(tx, "schema")}  # noqa: B009 - only PostgreSQL's has one
        options = {"dialect": _POSTGRES, "schema_translate_map": schema, "render_schema_translate": True}
    made = cast("SQLCompiler", statement.compile(**options, compile_kwargs={"render_postcompile": True}))
    values = made.params
    return str(made), [values[name] for name in made.positiontup or ()]
