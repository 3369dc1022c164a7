"""What the tests of SQL's pure functions share: a ledger in a schema of another name, and calls by batch."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from tests.services.postgres import PostgresServer

from redrive.ledger.postgres import migrate
from redrive.ledger.postgres.connect import PostgresUrl, connect

SCHEMA = "other_name"
Sql = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def session(postgres: PostgresServer) -> Iterator[Sql]:
    """A session on a ledger in a schema of another name, which is in no search_path."""
    name = postgres.create_database()
    url = PostgresUrl.parse(postgres.url(name, schema=SCHEMA))
    with closing(connect(url)) as conn:
        migrate.apply(conn, url, "test")
    with psycopg.connect(postgres.url(name), autocommit=True) as conn:
        # Whether a call is refused as bad input. Any other error is not caught.
        conn.execute(
            """CREATE FUNCTION pg_temp.refused(query text, value text) RETURNS boolean LANGUAGE plpgsql AS $$
               BEGIN
                 EXECUTE query USING value;
                 RETURN false;
               EXCEPTION WHEN invalid_parameter_value THEN
                 RETURN true;
               END $$"""
        )
        yield conn
    postgres.drop_database(name)


def one(sql: Sql, expression: str, *params: object) -> Any:
    row = sql.execute(f"SELECT {expression}".replace("@", f"{SCHEMA}."), params).fetchone()
    assert row is not None
    return row[0]


def each(sql: Sql, expression: str, cases: Sequence[object], kind: str = "text") -> list[Any]:
    """``expression`` of every case, which it calls ``v``, in one query."""
    query = f"SELECT {expression} FROM unnest(%s::{kind}[]) WITH ORDINALITY AS u(v, n) ORDER BY n"
    return [row[0] for row in sql.execute(query.replace("@", f"{SCHEMA}."), (list(cases),))]


def refusal(sql: Sql, expression: str, *params: object) -> str:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        one(sql, expression, *params)
    return str(caught.value.diag.message_primary)


ALPHABET = 'ab0"\\/\n\t\x00\x01\x1f\x7f\u00e9\u2028\ue000\uffff\U0001f4e6\U00010000 '


def some_text(rng: random.Random) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(rng.choice((0, 1, 1, 2, 3, 9))))


def some_json(rng: random.Random, value: object) -> str:
    """One of the ways to write a value as JSON."""
    indent, ascii_only = rng.choice((None, None, 1)), rng.random() < 0.5
    separators = rng.choice((None, (",", ":"), (" ,\t", "\r:  ")))
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=separators)
    return rng.choice(("", " ", "\n\t")) + text.replace("/", rng.choice(("/", "\\/"))) + rng.choice(("", "\r "))
