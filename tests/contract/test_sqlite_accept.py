"""Accepting in bulk on SQLite: batches of events, and all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.contract.harness import HostClock, ManualTime, delivery_of, event, work
from tests.contract.sqlite_subject import SqliteSubject, open_sqlite

from redrive.domain.delivery import Decided, Enqueued, NewDelivery, NewEvent, Published
from redrive.ledger.sqlite import enqueue


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[SqliteSubject]:
    made = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    yield made
    made.close()


def publish(subject: SqliteSubject, *sources: tuple[NewEvent, Sequence[str]]) -> list[Published]:
    batch = [(source, [delivery_of(source, name) for name in names]) for source, names in sources]
    return subject.transact_sync(lambda tx, now: enqueue.accept_events(tx, now, batch, path="library", producer="p"))


def accept_all(subject: SqliteSubject, *items: NewDelivery) -> list[Enqueued]:
    return subject.transact_sync(lambda tx, now: enqueue.accept_all(tx, now, items, path="library", producer="p"))


def test_a_batch_of_events_answers_each_in_order(subject: SqliteSubject) -> None:
    publish(subject, (event("old"), ["dst_1"]))
    made = publish(
        subject,
        (event("a"), ["dst_1", "dst_2"]),
        (event("old"), ["dst_1", "dst_9"]),
        (event("b"), []),
        (event("a"), ["dst_3"]),
        (event("c"), ["dst_3"]),
        (event("a", payload=b"other"), ["dst_1"]),
    )
    assert [one.decided.value for one in made] == [
        "created", "duplicate", "created", "duplicate", "created", "conflict",
    ]  # fmt: skip
    assert [len(one.deliveries) for one in made] == [2, 1, 0, 2, 1, 2]
    assert [one.seq for one in made[0].deliveries] == [one.seq for one in made[3].deliveries]
    rows = subject.read_sync(
        lambda tx: tx.rows(
            "SELECT e.event_key, d.destination FROM delivery d JOIN event e USING (event_seq) ORDER BY d.seq"
        )
    )
    assert rows == [("old", "dst_1"), ("a", "dst_1"), ("a", "dst_2"), ("c", "dst_3")]
    assert subject.read_sync(lambda tx: tx.rows("SELECT event_key, fan_out FROM event ORDER BY event_seq")) == [
        ("old", 1),
        ("a", 2),
        ("b", 0),
        ("c", 1),
    ]


def test_all_or_nothing_accepts_nothing_beside_a_conflict_and_records_it(subject: SqliteSubject) -> None:
    accept_all(subject, work("old"))
    made = accept_all(subject, work("new"), work("old", payload=b"other"), work("old"))
    assert [one.decided for one in made] == [Decided.CREATED, Decided.CONFLICT, Decided.DUPLICATE]
    assert subject.read_sync(lambda tx: tx.rows("SELECT key FROM delivery")) == [("old",)]
    assert subject.read_sync(lambda tx: tx.rows("SELECT seq, duplicates, conflicts FROM repeat_count")) == [(1, 0, 1)]
    (again,) = accept_all(subject, work("new"))
    assert again.decided is Decided.CREATED


def test_all_or_nothing_with_a_conflict_inside_itself_leaves_nothing(subject: SqliteSubject) -> None:
    made = accept_all(subject, work("a"), work("a", payload=b"other"))
    assert [one.decided for one in made] == [Decided.CREATED, Decided.CONFLICT]
    assert subject.read_sync(lambda tx: tx.rows("SELECT seq FROM identity")) == []
    assert subject.read_sync(lambda tx: tx.rows("SELECT seq FROM repeat_count")) == []


def test_nothing_is_accepted_of_nothing(subject: SqliteSubject) -> None:
    assert accept_all(subject) == []
    assert publish(subject) == []
