"""What is text on one ledger is the same text on the other."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.acceptance.engine_support import make, seen
from tests.acceptance.postgres_callers import application, ledger, nothing, query
from tests.services.postgres import PostgresServer

from redrive import InvalidInput, Redrive
from redrive.errors import PayloadInvalid, RedriveError

TEXTS = [
    "a\0b",
    "\0",
    "\\u0000",
    "\\x00 \\\\ \\",
    "'; DROP TABLE delivery; -- $1 %s {schema} {}",
    "\N{SNOWMAN}\N{PILE OF POO}\U0010ffff\uffff\ufffe",
    "Zoe\u0308 \u00e9 e\u0301",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc\N{ZERO WIDTH SPACE}",
    "\x01\x1f\x7f\x80\x9f\r\n\t",
    "\N{PILE OF POO}" * 250,
    "NULL",
    '{"a":1}',
]
FACTS = (
    "SELECT d.delivery_id, i.payload_hash, d.handler, d.tenant, d.scope, d.destination, d.key, d.content_type, "
    "d.payload FROM {0}delivery d JOIN {0}identity i ON i.delivery_id = d.delivery_id ORDER BY d.seq"
)
EVENTS = (
    "SELECT event_id, event_key, event_type, tenant, scope, content_type, payload_hash, payload "
    "FROM {0}event ORDER BY event_seq"
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[tuple[Redrive, Redrive]]:
    """The same application on a file and on a server."""
    with make(tmp_path_factory.mktemp("text")) as one, ledger(postgres) as url, application(url) as other:
        one.handler("job")(nothing)
        yield one, other


def kept(app: Redrive, statement: str) -> list[tuple[Any, ...]]:
    if app.url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as conn:
            return conn.execute(statement.format("")).fetchall()
    return query(app.url, statement.format("redrive."))


def answer(app: Redrive, method: str, *arguments: Any, **named: Any) -> Any:
    """What a call returned or refused, to be compared."""
    try:
        return getattr(app, method)(*arguments, **named)
    except RedriveError as exc:
        return type(exc), exc.code, exc.param, exc.message


def same(both: tuple[Redrive, Redrive], method: str, *arguments: Any, **named: Any) -> Any:
    one, other = (answer(app, method, *arguments, **named) for app in both)
    assert one == other
    return one


def test_every_text_that_one_ledger_keeps_the_other_keeps(both: tuple[Redrive, Redrive]) -> None:
    for n, text in enumerate(TEXTS):
        same(both, "enqueue", "job", {"text": text, text: [text]}, key=text)
        same(both, "enqueue", "job", text, key=(text, n, (text, b"\0", None)), tenant=f"t{n} {text}".strip()[:200])
        same(both, "enqueue", "job", text, key=("scope", n), scope=f"s{n} {text}".strip()[:200])
        same(both, "enqueue", "job", text, key=("destination", n), destination=f"d{n} {text}".strip()[:200])
        same(both, "publish", "a.b", {"text": text}, event_id=text)
        same(both, "publish", "a.b", text, event_id=("raw", text), content_type="text/plain")
        same(
            both, "publish", "a.b", json.dumps({text: text}), event_id=("json", n), tenant=f"t{n} {text}".strip()[:200]
        )
    assert kept(both[0], FACTS) == kept(both[1], FACTS)
    assert kept(both[0], EVENTS) == kept(both[1], EVENTS)
    keys = [row[6] for row in kept(both[1], FACTS)]
    assert keys[0] == "a\N{SYMBOL FOR NULL}b"
    assert "\N{PILE OF POO}" * 200 in keys
    assert not any("\0" in key for key in keys)


def test_what_is_no_text_is_refused_by_both(both: tuple[Redrive, Redrive]) -> None:
    for bad in ("\ud800", "a\udfff"):
        assert same(both, "enqueue", "job", 1, key=bad)[0] is InvalidInput
        assert same(both, "enqueue", "job", 1, key=1, tenant=bad)[0] is InvalidInput
        assert same(both, "enqueue", "job", {"a": bad}, key=1)[0] is PayloadInvalid
        assert same(both, "publish", "a.b", bad, event_id=1)[0] is InvalidInput
        assert same(both, "publish", "a.b", json.dumps(bad), event_id=1)[0] is PayloadInvalid
    for bad in ("a\0b", "", " a", "a\n"):
        assert same(both, "enqueue", "job", 1, key=1, tenant=bad)[0] is InvalidInput
        assert same(both, "enqueue", "job", 1, key=1, scope=bad)[0] is InvalidInput


text = st.text(max_size=260)
keys = st.recursive(
    text | st.integers(-(2**255), 2**255) | st.binary(max_size=20) | st.booleans(), st.lists, max_leaves=4
)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys, payloads, text | st.just("t"))
def test_both_ledgers_give_the_same_answers(both: tuple[Redrive, Redrive], key: Any, payload: Any, tenant: str) -> None:
    made = same(both, "enqueue", "job", payload, key=key, tenant=tenant)
    same(both, "enqueue", "job", [payload], key=key, tenant=tenant)
    same(both, "publish", "a.b", payload, event_id=key, tenant=tenant)
    if not isinstance(made, tuple):
        one, other = (seen(app, made.delivery_id) for app in both)
        assert (one.key, one.tenant) == (other.key, other.tenant)
        assert both[0].operations.payload(made.delivery_id) == both[1].operations.payload(made.delivery_id)


@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_reasons_and_actors_that_cannot_be_kept_are_refused_by_both(both: tuple[Redrive, Redrive], bad: str) -> None:
    for n, named in enumerate(({"reason": bad}, {"reason": "fine", "actor": bad})):
        refused = []
        for app in both:
            job = app.enqueue("job", 1, key=("cancel", bad.encode("utf-8", "replace"), n))
            with pytest.raises(InvalidInput) as caught:
                app.operations.cancel(job.delivery_id, **named)
            refused.append((caught.value.param, caught.value.message))
            assert seen(app, job.delivery_id).disposition == "waiting"
        assert refused[0] == refused[1]
        assert refused[0][0] in named
    for app in both:
        with pytest.raises(InvalidInput):
            Redrive(app.url, producer=bad)
