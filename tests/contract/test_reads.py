"""What people see: one delivery and its timeline, searches and counts, the status of a ledger."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.reads_support import (
    BUSY,
    LEDGERS,
    OK,
    OWN_FAULT,
    POLICY,
    REFUSED,
    SHUTDOWN,
    START,
    UNSURE,
    Churn,
    Desk,
    opened,
    place,
)

from redrive.domain.delivery import REPEATS_LISTED, DeadLetterState, Disposition, Hold
from redrive.domain.identity import from_text, to_text
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import HOUR, SECOND
from redrive.errors import InvalidInput, NotFound
from redrive.ledger import lookup, search, status, timeline
from redrive.ledger.records import (
    Count,
    DeadLetterView,
    DeliveryView,
    StatusView,
    TimelineEntry,
    iso,
    span,
)
from redrive.ledger.schema import compiled
from redrive.ledger.search import DeadFilter, DeliveryFilter
from redrive.ledger.sqlite.statements import sql as sqlite_text
from redrive.ledger.statements import sql
from redrive.ledger.verify import repair_clock

T0 = "2027-01-15T08:00:00.000000Z"


@pytest.fixture(params=LEDGERS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with opened(place(request, tmp_path)) as made:
        yield made


@pytest.fixture(scope="module", params=LEDGERS)
def shelf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """As ``mixed``, for tests that only look."""
    with opened(place(request, tmp_path_factory.mktemp("shelf"))) as made:
        yield fill(made)


@pytest.fixture(scope="module", params=LEDGERS)
def yard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """As ``graves``, for tests that only look."""
    with opened(place(request, tmp_path_factory.mktemp("yard"))) as made:
        yield bury(made)


only_sqlite = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)


def entries(desk: Desk, seq: int) -> list[TimelineEntry]:
    return desk.ledger.read_sync(lambda tx: timeline.timeline(tx, seq))


def kinds(desk: Desk, seq: int) -> list[str]:
    return [entry.kind for entry in entries(desk, seq)]


def deliveries(desk: Desk, **filters: Any) -> list[DeliveryView]:
    return desk.ledger.read_sync(lambda tx: search.search_deliveries(tx, DeliveryFilter(**filters), limit=1000)).items


def keys(desk: Desk, **filters: Any) -> list[str]:
    return [item.key for item in deliveries(desk, **filters)]


def dead(desk: Desk, **filters: Any) -> list[DeadLetterView]:
    return desk.ledger.read_sync(lambda tx: search.search_dead(tx, DeadFilter(**filters), limit=1000)).items


def look(desk: Desk, **more: Any) -> StatusView:
    return desk.ledger.read_sync(lambda tx: status.status(tx, desk.now, host_now=more.pop("host_now", desk.now)))


# --- records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (START, T0),
        (START + 1, "2027-01-15T08:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (253402300799999999, "9999-12-31T23:59:59.999999Z"),
        (253402300800000000, "+10000-01-01T00:00:00.000000Z"),
        (253402300800000000 + 60 * 86_400_000_000, "+10000-03-01T00:00:00.000000Z"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807Z"),
    ],
)
def test_times_are_iso_8601_with_microseconds(us: int, text: str) -> None:
    assert iso(us) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 us"),
        (999, "999 us"),
        (12_500, "12.5 ms"),
        (2_000_000, "2 s"),
        (59_400_000, "59.4 s"),
        (60_000_000, "1 min"),
        (90_000_000, "1 min 30 s"),
        (3_600_000_000, "1 h"),
        (5_400_000_000, "1 h 30 min"),
        (187_200_000_000, "2 d 4 h"),
        (-2_000_000, "-2 s"),
    ],
)
def test_lengths_of_time_read_well(us: int, text: str) -> None:
    assert span(us) == text


def walk(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)
    else:
        yield value


def test_every_record_prints_as_exact_json_without_a_payload(desk: Desk) -> None:
    churn = Churn(desk, 3)
    for _ in range(300):
        churn.step()
    secret = desk.enqueue("secret", b'"PAYLOAD"').seq
    desk.kill([REFUSED])

    def everything(tx: Any) -> list[Any]:
        seqs = sorted({*churn.seqs, secret})
        found: list[Any] = [status.status(tx, desk.now)]
        found += search.search_deliveries(tx, DeliveryFilter(), limit=1000).items
        found += search.search_dead(tx, DeadFilter(state=None), limit=1000).items
        found += search.count_dead(tx, DeadFilter(state=None))
        for seq in seqs:
            found += [timeline.show(tx, seq), *timeline.attempts(tx, seq), *timeline.timeline(tx, seq)]
        return found

    found = desk.ledger.read_sync(everything)
    assert len({type(item) for item in found}) == 6
    for item in found:
        shown = json.loads(json.dumps(item.as_dict()))
        assert set(shown) == {f.name for f in fields(item)}
        for name, value in shown.items():
            if (name == "at" or name.endswith("_at")) and value is not None:
                assert value.endswith("Z"), name
                assert len(value) == 27
        for value in walk(shown):
            assert not isinstance(value, int) or abs(value) <= 2**53
            assert "PAYLOAD" not in str(value)


# --- one delivery ------------------------------------------------------------------------------------


def test_a_delivery_is_found_by_its_printed_id(desk: Desk) -> None:
    made = desk.enqueue("a", scope="shop 1", priority=1, delay_us=5 * SECOND)
    text = to_text("dlv", made.delivery_id)
    for spelled in (text, text.upper(), f" {text}\n"):
        assert desk.ledger.read_sync(lambda tx, s=spelled: timeline.find(tx, s)) == made.seq
    shown = desk.ledger.read_sync(lambda tx: timeline.show(tx, made.seq)).as_dict()
    assert shown == {
        "id": text,
        "handler": "job",
        "tenant": "acme",
        "scope": "shop 1",
        "destination": "job",
        "key": "a",
        "event_id": None,
        "event_type": None,
        "event_key": None,
        "disposition": "waiting",
        "hold": None,
        "generation": 0,
        "attempt": 0,
        "max_attempts": 3,
        "deadline_at": iso(START + HOUR + 5 * SECOND),
        "available_at": iso(START + 5 * SECOND),
        "fence": 0,
        "lane": "fresh",
        "priority": 1,
        "last_category": None,
        "ambiguous": False,
        "cancel_requested": False,
        "deferrals": 0,
        "first_queued_at": T0,
        "first_due_at": iso(START + 5 * SECOND),
        "content_type": "application/json",
        "envelope_version": 1,
        "policy_version": str(POLICY.version),
        "worker": None,
        "started_at": None,
        "lease_expires_at": None,
    }


def test_an_id_that_is_not_there_says_so_and_helps(desk: Desk) -> None:
    missing = to_text("dlv", bytes(16))
    with pytest.raises(NotFound, match=missing) as caught:
        desk.ledger.read_sync(lambda tx: timeline.find(tx, missing))
    assert caught.value.hint
    for text in ("", "dlv_", "evt_" + "0" * 26, "42", "dlv_" + "z" * 26, "dlv_" + "u" * 26):
        with pytest.raises(InvalidInput):
            desk.ledger.read_sync(lambda tx, t=text: timeline.find(tx, t))
    for read in (timeline.show, timeline.timeline):
        with pytest.raises(NotFound):
            desk.ledger.read_sync(lambda tx, r=read: r(tx, 7))


def test_attempts_say_what_they_showed_in_words(desk: Desk) -> None:
    (seq,) = desk.publish("e1", ["dst_1"])
    asked = replace(BUSY, status=429, category=Category.HTTP_429, retry_after_us=7 * SECOND, excerpt="slow down")
    desk.attempt(asked)
    desk.attempt(replace(OK, flags=Flag.RECEIVER_DUPLICATE | Flag.RESPONSE_TRUNCATED))
    first, second = desk.ledger.read_sync(lambda tx: timeline.attempts(tx, seq))
    assert first.as_dict() == {
        "id": first.id,
        "number": 1,
        "generation": 0,
        "fence": 1,
        "worker": "w1",
        "started_at": T0,
        "ended_at": iso(START + 10_000),
        "duration_us": 12_500,
        "outcome": "retryable",
        "category": "http_429",
        "status": 429,
        "retry_after_us": 7 * SECOND,
        "next_at": iso(START + 10_000 + 7 * SECOND),
        "deferrals": 0,
        "flags": [],
        "excerpt": "slow down",
    }
    assert len(from_text("att", first.id)) == 16
    assert first.id != second.id
    assert second.flags == ("receiver_duplicate", "response_truncated")


# --- the timeline ------------------------------------------------------------------------------------


def test_a_timeline_tells_the_whole_story_in_order(desk: Desk) -> None:
    (seq,) = desk.publish("e1", ["dst_1"])
    desk.attempt(replace(BUSY, retry_after_us=2 * SECOND))
    desk.attempt(UNSURE)
    desk.attempt(BUSY)
    desk.pass_time(SECOND)
    desk.redrive(seq)
    desk.attempt(replace(OK, flags=Flag.RECEIVER_DUPLICATE))
    told = [(entry.kind, entry.text) for entry in entries(desk, seq)]
    assert told == [
        ("accepted", "accepted for event order.paid: up to 3 attempts until 2027-01-15T09:00:00.000000Z"),
        ("reserved", "attempt 1 of 3 reserved by w1"),
        ("attempt", "attempt 1 of 3 ended retryable: http_5xx, 503, after 12.5 ms"),
        (
            "retry",
            "next attempt at 2027-01-15T08:00:02.010000Z because http_503, attempt 1 of 3, Retry-After 2 s",
        ),
        ("reserved", "attempt 2 of 3 reserved by w1"),
        ("attempt", "attempt 2 of 3 ended unknown: timeout_sent, after 12.5 ms"),
        ("retry", "next attempt at 2027-01-15T08:00:06.020000Z because timeout_sent, attempt 2 of 3"),
        ("reserved", "attempt 3 of 3 reserved by w1"),
        ("attempt", "attempt 3 of 3 ended retryable: http_5xx, 503, after 12.5 ms"),
        (
            "dead_letter",
            "dead letter 1: attempts_exhausted after 3 attempts, last http_5xx; an effect may exist all the same",
        ),
        ("generation", "generation 1 opened: up to 2 attempts until 2027-01-15T09:00:07.030000Z"),
        ("reserved", "attempt 1 of 2 reserved by w1"),
        ("attempt", "attempt 1 of 2 ended delivered: ok, 200, after 12.5 ms (receiver reported duplicate)"),
    ]
    found = entries(desk, seq)
    assert [entry.at for entry in found] == sorted(entry.at for entry in found)
    assert [entry.facts["generation"] for entry in found] == [0] * 10 + [1] * 3
    assert found[3].as_dict() == {
        "at": iso(START + 10_000),
        "kind": "retry",
        "text": told[3][1],
        "facts": {
            "generation": 0,
            "fence": 1,
            "number": 1,
            "next_at": iso(START + 10_000 + 2 * SECOND),
            "because": "http_503",
            "retry_after_us": 2 * SECOND,
        },
    }
    assert found[9].facts["state"] == "redriven"
    assert found[10].facts["replay_id"].startswith("gen_")
    assert found[10].facts["parent"] == 0


def test_an_open_reservation_is_on_the_timeline(desk: Desk) -> None:
    seq = desk.enqueue("a", delay_us=SECOND).seq
    assert entries(desk, seq)[0].text.endswith(f", due {iso(START + SECOND)}")
    desk.pass_time(SECOND)
    desk.reserve()
    last = entries(desk, seq)[-1]
    assert last.kind == "leased"
    assert last.text == ("attempt 1 of 3 reserved by w1, open; its lease runs until 2027-01-15T08:00:31.000000Z")
    assert last.facts["worker"] == "w1"
    shown = desk.ledger.read_sync(lambda tx: timeline.show(tx, seq))
    assert (shown.worker, shown.started_at) == ("w1", desk.now)


def test_repeats_are_listed_up_to_a_bound_then_counted(desk: Desk) -> None:
    seq = desk.enqueue("a").seq
    for n in range(REPEATS_LISTED):
        desk.pass_time(1)
        desk.enqueue("a", b"[]" if n == 1 else b"{}")
    assert kinds(desk, seq) == ["accepted", "duplicate", "conflict", *["duplicate"] * 6]
    assert "library, tests" in entries(desk, seq)[1].text
    for body in (b"{}", b"{}", b"[]"):
        desk.enqueue("a", body)
    last = entries(desk, seq)[-1]
    assert (last.kind, last.text) == ("repeats", "and 3 more: 2 with the same payload, 1 conflicts")
    assert last.facts == {"generation": 0, "duplicates": 2, "conflicts": 1}


def test_deferrals_are_told_once_with_their_count(desk: Desk) -> None:
    seq = desk.enqueue("a").seq
    desk.kill([OWN_FAULT, OWN_FAULT, OWN_FAULT, SHUTDOWN, OWN_FAULT, BUSY, SHUTDOWN, SHUTDOWN])
    told = [(entry.text, entry.facts["count"]) for entry in entries(desk, seq) if "count" in entry.facts]
    assert told == [
        ("put off at no charge: own_fault (3 times)", 3),
        ("returned before it started, at no charge: shutdown", 1),
        ("put off at no charge: own_fault", 1),
        ("returned before it started, at no charge: shutdown (2 times)", 2),
    ]
    desk.pass_time(5 * SECOND)
    desk.reserve()
    assert entries(desk, seq)[-2].facts["count"] == 2, "the open reservation is not a deferral"


def test_holds_cancellations_and_late_reports_are_told(desk: Desk) -> None:
    (held,) = desk.publish("e1", ["dst_1"])
    desk.hold("dst_1", True)
    desk.pass_time(SECOND)
    desk.hold("dst_1", False)
    desk.cancel(held)
    told = [entry.text for entry in entries(desk, held)][1:]
    assert told == ["held by ada: maintenance", "released by ada: maintenance", "cancelled by ada: not needed"]
    asked = desk.enqueue("asked").seq
    (lease,) = desk.reserve()
    desk.cancel(asked)
    desk.end(lease, BUSY)
    assert kinds(desk, asked) == ["accepted", "reserved", "cancel_requested", "attempt", "cancelled"]
    late = desk.enqueue("late").seq
    (lease,) = desk.reserve(lease_us=SECOND)
    desk.pass_time(2 * SECOND)
    desk.reap()
    assert entries(desk, late)[2].text.startswith("attempt 1 of 3 ended unknown: worker_lost")
    desk.end(lease, OK)
    assert entries(desk, late)[-1].text == "a late report was accepted: delivered (ok)"
    desk.end(lease, UNSURE)
    desk.end(lease, REFUSED)
    assert entries(desk, late)[-1].text == "a late report is kept as evidence: permanent (http_4xx)"
    tardy = desk.enqueue("tardy").seq
    (lease,) = desk.reserve(lease_us=SECOND)
    desk.pass_time(2 * SECOND)
    desk.end(lease, OK)
    assert entries(desk, tardy)[-1].text.endswith("(after its lease had expired)")
    aged = desk.enqueue("aged").seq
    desk.pass_time(HOUR)
    desk.reap()
    assert [entry.text for entry in entries(desk, aged)][1:] == [
        "the age budget ran out while it waited: age",
        "dead letter 1: age_exhausted after 0 attempts, last age",
    ]


# --- searches ----------------------------------------------------------------------------------------


@pytest.fixture
def mixed(desk: Desk) -> Desk:
    """Deliveries a to h, and one for each thing that a filter can ask for."""
    return fill(desk)


def fill(desk: Desk) -> Desk:
    desk.enqueue("a", tenant="t1", scope="s1", handler="job")
    desk.kill([OK])
    desk.enqueue("b", tenant="t1", scope="s2")
    desk.kill([REFUSED])
    desk.pass_time(SECOND)
    desk.enqueue("c", tenant="t2", destination="other")
    desk.kill([BUSY, BUSY, BUSY])
    desk.publish("d", ["dst_1"], tenant="t1")
    desk.hold("dst_1", True)
    (sent,) = desk.publish("e", ["dst_2"], "order.sent", tenant="t2")
    desk.cancel(sent)
    desk.enqueue("f", tenant="t2")
    desk.kill([UNSURE])
    desk.enqueue("g", tenant="t1")
    assert len(desk.reserve()) == 1
    desk.enqueue("h", tenant="t2", delay_us=HOUR)
    return desk


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "hgfedcba"),
    ({"tenant": "t1"}, "gdba"),
    ({"tenant": "t1", "scope": "s2"}, "b"),
    ({"scope": "s1"}, "a"),
    ({"destination": "dst_1"}, "d"),
    ({"handler": "webhook"}, "ed"),
    ({"handler": "nobody"}, ""),
    ({"dispositions": [Disposition.WAITING]}, "hfd"),
    ({"dispositions": [Disposition.WAITING, Disposition.LEASED]}, "hgfd"),
    ({"dispositions": [Disposition.LEASED]}, "g"),
    ({"dispositions": [Disposition.DEAD]}, "cb"),
    ({"dispositions": [Disposition.DEAD], "tenant": "t2"}, "c"),
    ({"dispositions": [Disposition.DELIVERED, Disposition.CANCELLED]}, "ea"),
    ({"dispositions": []}, ""),
    ({"dispositions": list(Disposition)}, "hgfedcba"),
    ({"held": True}, "d"),
    ({"held": False, "tenant": "t1"}, "gba"),
    ({"hold": Hold.DESTINATION_DISABLED}, "d"),
    ({"hold": Hold.DESTINATION_DISABLED, "dispositions": [Disposition.DEAD]}, ""),
    ({"event_type": "order.paid"}, "d"),
    ({"event_key": "e"}, "e"),
    ({"event_key": "e", "tenant": "t2"}, "e"),
    ({"event_key": "e", "tenant": "t1"}, ""),
    ({"key": "b"}, "b"),
    ({"key": "b", "tenant": "t1", "handler": "job"}, "b"),
    ({"key": "b", "tenant": "t2", "handler": "job"}, ""),
    ({"key": "d", "tenant": "t1", "handler": "webhook"}, "d"),
    ({"category": "http_5xx"}, "c"),
    ({"ambiguous": True}, "f"),
    ({"ambiguous": False, "tenant": "t2", "handler": "job"}, "hc"),
    ({"until": START + SECOND}, "ba"),
    ({"since": START + SECOND}, "hgfedc"),
    ({"since": START + SECOND, "until": START + SECOND + 20_001}, "c"),
    ({"since": START + HOUR}, ""),
    ({"tenant": "' OR 1 = 1 --"}, ""),
]


@pytest.mark.parametrize(("filters", "found"), FILTERS)
def test_each_filter_finds_what_it_says_newest_first(shelf: Desk, filters: dict[str, Any], found: str) -> None:
    assert "".join(keys(shelf, **filters)) == found


def test_every_field_of_a_filter_is_tried() -> None:
    assert {name for filters, _ in FILTERS for name in filters} == {f.name for f in fields(DeliveryFilter)}


def test_a_search_shows_what_show_shows(mixed: Desk) -> None:
    for item in deliveries(mixed):
        seq = mixed.ledger.read_sync(lambda tx, i=item.id: timeline.find(tx, i))
        assert mixed.ledger.read_sync(lambda tx, s=seq: timeline.show(tx, s)) == item


def test_live_deliveries_are_found_the_same_way_when_there_are_many(
    mixed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "LIVE_DRIVES", 1)
    assert "".join(keys(mixed, dispositions=[Disposition.WAITING, Disposition.LEASED])) == "hgfd"


@only_sqlite
def test_times_still_decide_where_the_clock_was_set_back(desk: Desk) -> None:
    desk.pass_time(HOUR)
    desk.enqueue("ahead")
    desk.now -= HOUR
    repair_clock(desk.ledger, "ada")
    desk.enqueue("after")
    assert keys(desk, since=START + HOUR) == ["ahead"]
    assert keys(desk, until=START + HOUR) == ["after"]
    assert keys(desk) == ["after", "ahead"]


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 9])
def test_pages_join_without_a_gap_or_a_repeat_while_rows_arrive(mixed: Desk, limit: int) -> None:
    mixed.pass_time(SECOND)
    begun = mixed.now
    for filters, want in (
        (DeliveryFilter(), "hgfedcba"),
        (DeliveryFilter(dispositions=[Disposition.DEAD]), "cb"),
        (DeliveryFilter(dispositions=[Disposition.WAITING], until=begun), "hfd"),
        (DeliveryFilter(tenant="t1", since=START, until=begun), "gdba"),
    ):
        found, after = "", None
        for _ in range(20):
            page = mixed.ledger.read_sync(lambda tx, f=filters, a=after: search.search_deliveries(tx, f, a, limit))
            found += "".join(item.key for item in page.items)
            assert len(page.items) <= limit
            mixed.enqueue(f"later {len(found)} {want} {limit}", tenant="t1", delay_us=HOUR)
            after = page.next
            if after is None:
                break
        assert found == want


def test_a_cursor_that_was_tampered_with_is_refused(mixed: Desk) -> None:
    page = mixed.ledger.read_sync(lambda tx: search.search_deliveries(tx, DeliveryFilter(), limit=2))
    cursor = page.next
    assert cursor is not None
    dead_cursor = mixed.ledger.read_sync(lambda tx: search.search_dead(tx, DeadFilter(), limit=1)).next
    forged = [cursor[:n] + ("A" if c != "A" else "B") + cursor[n + 1 :] for n, c in enumerate(cursor)]
    for text in [*forged, "", "7", "é", cursor + "=", cursor[:-1], cursor + cursor, f" {cursor}", dead_cursor]:
        with pytest.raises(InvalidInput) as caught:
            mixed.ledger.read_sync(lambda tx, t=text: search.search_deliveries(tx, DeliveryFilter(), t))
        assert caught.value.param == "after"
    for limit in (0, -1, 1001, True):
        with pytest.raises(InvalidInput):
            mixed.ledger.read_sync(lambda tx, n=limit: search.search_deliveries(tx, DeliveryFilter(), None, n))


def plan(desk: Desk, statement: Any) -> list[str]:
    text, values = desk.ledger.read_sync(lambda tx: compiled(tx, statement))
    with contextlib.closing(sqlite3.connect(desk.path)) as conn:
        return [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {text}", values)]


@only_sqlite
@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"tenant": "t1"}, "SEARCH delivery USING INDEX delivery_by_tenant"),
        ({"destination": "dst_1"}, "SEARCH delivery USING INDEX delivery_by_destination"),
        ({"tenant": "t1", "scope": "s1"}, "SEARCH delivery USING INDEX delivery_by_tenant"),
        ({"tenant": "t1", "event_key": "d"}, "SEARCH delivery USING INDEX delivery_by_event"),
        (
            {"tenant": "t1", "handler": "job", "key": "a"},
            "SEARCH delivery USING INTEGER PRIMARY KEY (rowid=?)",
        ),
        ({"since": START + SECOND}, "SEARCH delivery USING INTEGER PRIMARY KEY (rowid>?"),
        ({"dispositions": [Disposition.LEASED]}, "SCAN delivery_state USING INDEX delivery_state_leased"),
        (
            {"dispositions": [Disposition.LEASED], "tenant": "t1"},
            "SCAN delivery_state USING INDEX delivery_state_leased",
        ),
        ({"dispositions": [Disposition.WAITING]}, "USING INDEX delivery_state_deadline"),
        ({"held": True, "destination": "dst_1"}, "USING INDEX delivery_state_deadline"),
        ({"dispositions": [Disposition.DEAD]}, "sqlite_autoindex_dead_letter_1"),
        ({"dispositions": [Disposition.DEAD], "destination": "x"}, "sqlite_autoindex_dead_letter_1"),
    ],
)
def test_common_searches_start_from_an_index(mixed: Desk, filters: dict[str, Any], index: str, analyzed: bool) -> None:
    if analyzed:
        with contextlib.closing(sqlite3.connect(mixed.path)) as conn:
            conn.execute("ANALYZE")
            conn.commit()
    statement = mixed.ledger.read_sync(lambda tx: search.delivery_statement(tx, DeliveryFilter(**filters), 1000, 50))
    steps = plan(mixed, statement)
    assert index in steps[0]
    assert not any(step.split()[:2] == ["SCAN", "delivery"] for step in steps)
    # Statistics of a table with one row make a scan of it look free, and it is.
    assert analyzed or not any("SCAN" in step for step in steps[1:])


@only_sqlite
def test_the_newest_deliveries_are_read_backwards_and_no_further(mixed: Desk) -> None:
    statement = mixed.ledger.read_sync(lambda tx: search.delivery_statement(tx, DeliveryFilter(), 1000, 50))
    steps = plan(mixed, statement)
    assert steps[0] == "SEARCH delivery USING INTEGER PRIMARY KEY (rowid<?)"
    assert "USE TEMP B-TREE FOR ORDER BY" not in steps


# --- dead letters ------------------------------------------------------------------------------------


@pytest.fixture
def graves(desk: Desk) -> Desk:
    return bury(desk)


def bury(desk: Desk) -> Desk:
    for n in range(3):
        desk.enqueue(f"a{n}", tenant="t1", scope=f"s{n}", destination="d1")
        desk.kill([REFUSED])
    desk.pass_time(SECOND)
    desk.enqueue("b", tenant="t2", destination="d1")
    desk.kill([BUSY, UNSURE, BUSY])
    desk.publish("c", ["d2"], "order.sent", tenant="t1")
    desk.kill([REFUSED])
    again = desk.enqueue("d", tenant="t2", destination="d1").seq
    desk.kill([REFUSED])
    desk.redrive(again)
    desk.kill([Outcome(OutcomeKind.PERMANENT, Category.GONE)])
    return desk


DEAD_FILTERS: list[tuple[dict[str, Any], int]] = [
    ({}, 6),
    ({"state": None}, 7),
    ({"state": DeadLetterState.REDRIVEN}, 1),
    ({"state": DeadLetterState.DISCARDED}, 0),
    ({"tenant": "t1"}, 4),
    ({"scope": "s1"}, 1),
    ({"destination": "d1"}, 5),
    ({"destination": "d1", "cause": "permanent"}, 4),
    ({"destination": "d1", "cause": "permanent", "category": "gone"}, 1),
    ({"handler": "webhook"}, 1),
    ({"event_type": "order.sent"}, 1),
    ({"event_type": "order.none"}, 0),
    ({"ambiguous": True}, 1),
    ({"until": START + SECOND}, 3),
    ({"since": START + SECOND}, 3),
    ({"since": START + SECOND, "tenant": "t1"}, 1),
]


@pytest.mark.parametrize(("filters", "count"), DEAD_FILTERS)
def test_dead_letters_are_listed_and_counted_by_one_predicate(yard: Desk, filters: dict[str, Any], count: int) -> None:
    letters = dead(yard, **filters)
    assert len(letters) == count
    assert [letter.number for letter in letters] == sorted((x.number for x in letters), reverse=True)
    counts = yard.ledger.read_sync(lambda tx: search.count_dead(tx, DeadFilter(**filters)))
    groups = Counter((x.destination, x.cause, x.category) for x in letters)
    assert {(c.destination, c.cause, c.category): c.count for c in counts} == groups
    for c in counts:
        died = [
            x.died_at for x in letters if (x.destination, x.cause, x.category) == (c.destination, c.cause, c.category)
        ]
        assert (c.oldest_at, c.newest_at) == (min(died), max(died))
    assert [c.count for c in counts] == sorted((c.count for c in counts), reverse=True)


def test_every_field_of_a_dead_filter_is_tried() -> None:
    assert {name for filters, _ in DEAD_FILTERS for name in filters} == {f.name for f in fields(DeadFilter)}


def test_a_dead_letter_carries_its_evidence(graves: Desk) -> None:
    newest, oldest = dead(graves)[0], dead(graves)[-1]
    assert (newest.generation, newest.category, newest.attempts) == (1, "gone", 1)
    assert newest.replay_id is not None
    assert newest.replay_id.startswith("gen_")
    assert oldest.as_dict() == {
        "number": 1,
        "delivery": oldest.delivery,
        "generation": 0,
        "replay_id": None,
        "state": "open",
        "handler": "job",
        "tenant": "t1",
        "scope": "s0",
        "destination": "d1",
        "event_id": None,
        "event_type": None,
        "cause": "permanent",
        "category": "http_4xx",
        "attempts": 1,
        "first_at": T0,
        "last_at": iso(START + 10_000),
        "ambiguous": False,
        "policy_version": str(POLICY.version),
        "died_at": iso(START + 10_000),
    }
    (sent,) = dead(graves, event_type="order.sent")
    assert sent.event_id is not None
    assert sent.event_id.startswith("evt_")


def test_dead_letters_page_by_key(graves: Desk) -> None:
    found: list[int] = []
    after = None
    for _ in range(10):
        page = graves.ledger.read_sync(lambda tx, a=after: search.search_dead(tx, DeadFilter(), a, 2))
        found += [item.number for item in page.items]
        after = page.next
        if after is None:
            break
    assert found == [7, 5, 4, 3, 2, 1]


@only_sqlite
@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"destination": "d1"}, "dead_letter_open (destination=?"),
        ({"destination": "d1", "cause": "permanent", "category": "gone"}, "dead_letter_open"),
        ({"tenant": "t1"}, "dead_letter_by_tenant (tenant=?"),
    ],
)
def test_open_dead_letters_are_found_by_their_indexes(graves: Desk, filters: dict[str, Any], index: str) -> None:
    def query(tx: Any) -> list[Any]:
        chosen = DeadFilter(**filters)
        return [search.dead_statement(tx, chosen, None, 50), search.count_statement(tx, chosen)]

    for statement in graves.ledger.read_sync(query):
        assert any(index in step for step in plan(graves, statement))


# --- status ------------------------------------------------------------------------------------------


def test_the_status_of_a_new_ledger_is_all_quiet(desk: Desk) -> None:
    seen = look(desk)
    (version,) = desk.ask("SELECT max(version) FROM @schema_migration")[0]
    assert (seen.environment, seen.schema_version, str(seen.accepted), seen.skew_us) == ("test", version, "0", 0)
    assert set(seen.dispositions) == {d.label for d in Disposition}
    assert {str(count) for count in seen.dispositions.values()} == {"0"}
    assert (seen.oldest_due_us, seen.oldest_lease_us, seen.expired_leases) == (None, None, 0)
    assert (seen.unclaimed, seen.rejections, str(seen.due), str(seen.held)) == ((), {}, "0", "0")
    (worker,) = seen.workers
    assert (worker.name, worker.host, worker.pid, worker.version) == ("w1", "host-a", 1, "0.1.0")
    assert worker.routes == (("job", 1), ("webhook", 1))
    assert seen.as_dict()["workers"][0]["routes"] == [["job", 1], ["webhook", 1]]


def test_the_status_counts_what_is_there(mixed: Desk) -> None:
    mixed.pass_time(130 * SECOND)
    mixed.register("w2")
    counted = {"invalid_input": 3, "conflict": 1}
    mixed.ledger.transact_sync(lambda tx, now: tx.many(sql("rejection_count"), list(counted.items())))
    for body in (b"{}", b"{}", b"[]"):
        mixed.enqueue("a", body, tenant="t1")
    seen = look(mixed, host_now=mixed.now - 7 * SECOND)
    assert {word: str(count) for word, count in seen.dispositions.items()} == {
        "waiting": "3",
        "leased": "1",
        "delivered": "1",
        "no_op": "0",
        "dead": "2",
        "cancelled": "1",
    }
    assert (str(seen.due), str(seen.held), str(seen.dead_letters_open)) == ("1", "1", "2")
    assert str(seen.accepted) == "8", "a duplicate, a conflict and what was rolled back are none"
    f, g = (deliveries(mixed, key=key)[0] for key in "fg")
    assert seen.oldest_due_us == mixed.now - f.available_at
    assert g.started_at is not None
    assert (seen.oldest_lease_us, seen.expired_leases) == (mixed.now - g.started_at, 1)
    assert seen.skew_us == 7 * SECOND
    assert [worker.name for worker in seen.workers] == ["w2"], "w1 was not seen for 130 s"
    assert seen.rejections == {"conflict": 1, "invalid_input": 3}
    assert (str(seen.duplicates), str(seen.conflicts)) == ("2", "1")
    assert seen.unclaimed == ()


def test_work_that_is_not_due_has_no_age(desk: Desk) -> None:
    desk.enqueue("later", delay_us=HOUR)
    seen = look(desk)
    assert (str(seen.due), seen.oldest_due_us) == ("0", None)
    desk.pass_time(HOUR + 3 * SECOND)
    seen = look(desk)
    assert (str(seen.due), seen.oldest_due_us) == ("1", 3 * SECOND)


def test_work_that_no_live_worker_can_execute_is_named(desk: Desk) -> None:
    desk.enqueue("a", envelope_version=2, delay_us=HOUR)
    desk.enqueue("b", envelope_version=2)
    desk.enqueue("c", handler="mail")
    desk.enqueue("d")
    assert [(u.handler, u.envelope_version, str(u.waiting)) for u in look(desk).unclaimed] == [
        ("job", 2, "2"),
        ("mail", 1, "1"),
    ]
    newer = desk.register("w2", '[["job",2],["mail",1]]')
    assert look(desk).unclaimed == ()
    desk.ledger.transact_sync(lambda tx, now: tx.run(sql("worker_stopped"), (newer, now)))
    assert len(look(desk).unclaimed) == 2


def test_counts_stop_at_a_cap_and_say_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(12):
        desk.publish(f"e{n}", [f"d{n % 2}"])
        desk.kill([OK if n % 3 else REFUSED])
    for n in range(9):
        desk.publish(f"f{n}", [f"d{n % 3}"])
    desk.hold("d0", True)
    desk.reserve(2)
    desk.register("idle", "[]")
    exact = look(desk)
    assert [str(exact.dispositions[word]) for word in ("waiting", "leased", "delivered", "dead")] == [
        "7",
        "2",
        "8",
        "4",
    ]
    assert (str(exact.due), str(exact.held)) == ("4", "3")
    monkeypatch.setattr(status, "CAP", 3)
    capped = look(desk)
    assert [str(capped.dispositions[word]) for word in ("waiting", "leased", "dead")] == ["7", "2", "4"]
    assert capped.dispositions["delivered"] == Count(0, True), "at least none of the newest few"
    assert (str(capped.due), str(capped.held), str(capped.dead_letters_open)) == ("3+", "3", "3+")
    monkeypatch.setattr(status, "LIVE_CAP", 3)
    least = look(desk)
    assert least.dispositions["waiting"].more
    assert least.held.more
    assert least.dispositions["dead"] == Count(0, True)
    assert str(Count(100_000, True)) == "100,000+"
    assert least.as_dict()["due"] == {"count": 3, "more": True}


STATUS_STATEMENTS = {
    "count_live": 1,
    "count_ready": 1,
    "leases": 1,
    "routes_waiting": 1,
    "route_name": 1,
    "route_due": 4,
    "route_waiting": 2,
}


@only_sqlite
@pytest.mark.parametrize("name", sorted(STATUS_STATEMENTS))
def test_live_work_is_counted_by_its_indexes(desk: Desk, name: str) -> None:
    values = (5,) * STATUS_STATEMENTS[name]
    with contextlib.closing(sqlite3.connect(desk.path)) as conn:
        steps = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {sqlite_text(name)}", values)]
    touched = [step for step in steps if "delivery_state" in step or " s " in step]
    assert touched
    assert all("INDEX delivery_state_" in step for step in touched)


# --- slim --------------------------------------------------------------------------------------------


def test_sqlalchemy_is_loaded_by_searches_only() -> None:
    script = (
        "import sys\n"
        "import redrive.ledger.sqlite.ledger, redrive.ledger.timeline, redrive.ledger.status\n"
        "import redrive.ledger.postgres.ledger\n"
        "import redrive.ledger.verify, redrive.ledger.audit, redrive.ledger.records\n"
        "assert 'sqlalchemy' not in sys.modules\n"
        "import redrive.ledger.search\n"
        "assert 'sqlalchemy' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
