"""Publish: who gets an event, and that it stays so; what is held; what cannot be published."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    Got,
    Receiver,
    Reply,
    assert_verified,
    dead,
    drain,
    make,
    query,
    rig,
    seen,
    settings,
    tries,
    until,
    working,
)

from redrive import UNIQUE, Conflict, InvalidInput
from redrive.errors import ForbiddenAddress, NotFound, PayloadInvalid, PayloadTooLarge
from redrive.webhooks.catalog import STALE_S
from redrive.webhooks.publish import Event
from redrive.webhooks.settings import DestinationSettings, SigningSecret


def plain(receiver: Receiver, path: str, **options: Any) -> DestinationSettings:
    return settings(receiver.url(path), secrets=(), **options)


# --- fan-out --------------------------------------------------------------------------------------------


def test_events_go_to_the_tenants_destinations_whose_filters_match(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        for name, filters in {
            "exact": ("order.paid",),
            "star": ("order.*",),
            "deep": ("order.**",),
            "two": ("user.created", "order.paid.late"),
            "all": ("*",),
            "none": (),
        }.items():
            app.destinations.add(name, plain(receiver, f"/{name}", event_types=filters))
        app.destinations.add("other", plain(receiver, "/other"), tenant="acme")
        sent = {
            event: app.publish(event, {}, event_id=event) for event in ("order.paid", "order.paid.late", "user.created")
        }
        theirs = app.publish("order.paid", {}, event_id="order.paid", tenant="acme")
        drain(app)
        got = {
            event: sorted(g.path[1:] for g in receiver.got if g.headers["redrive-event-id"] == made.event_id)
            for event, made in sent.items()
        }
        assert got == {
            "order.paid": ["all", "deep", "exact", "none", "star"],
            "order.paid.late": ["all", "deep", "none", "two"],
            "user.created": ["all", "none", "two"],
        }
        assert [g.path for g in receiver.got if g.headers["redrive-event-id"] == theirs.event_id] == ["/other"]
        assert_verified(app)


def test_the_fan_out_is_frozen_at_the_first_publish(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("early", plain(receiver, "/early"))
        first = app.publish("order.paid", {"n": 1}, event_id=1)
        app.destinations.add("late", plain(receiver, "/late"))
        again = app.publish("order.paid", {"n": 1}, event_id=1)
        assert (first.created, again.created) == (True, False)
        assert again.event_id == first.event_id
        assert again.deliveries == first.deliveries
        assert len(app.publish("order.paid", {"n": 1}, event_id=2).deliveries) == 2
        drain(app)
        assert sorted(got.path for got in receiver.got) == ["/early", "/early", "/late"]
        assert_verified(app)


@pytest.mark.parametrize("change", ["payload", "type", "content type"])
def test_the_same_event_id_with_something_else_is_a_conflict(tmp_path: Path, change: str) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        app.publish("order.paid", {"n": 1}, event_id=1)
        event = {
            "payload": Event("order.paid", {"n": 2}, 1),
            "type": Event("order.lost", {"n": 1}, 1),
            "content type": Event("order.paid", {"n": 1}, 1, content_type="application/vnd.a+json"),
        }[change]
        with pytest.raises(Conflict) as caught:
            app.publish_many([Event("order.paid", {"n": 3}, 3), event])
        assert caught.value.param == "event_id"
        assert query(app, "SELECT count(*) FROM event") == [(1,)]
        assert query(app, "SELECT decided FROM repeat") == [("conflict",)]
        drain(app)
        assert [got.body for got in receiver.got] == [b'{"n":1}']
        assert_verified(app)


def test_an_event_that_nobody_wants_is_kept_and_known_again(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        first, again = (app.publish("order.paid", {"n": 1}, event_id=1) for _ in range(2))
        assert (first.created, first.deliveries) == (True, ())
        assert (again.created, again.deliveries) == (False, ())
        with pytest.raises(Conflict):
            app.publish("order.paid", {"n": 2}, event_id=1)
        assert query(app, "SELECT count(*), max(fan_out) FROM event") == [(1, 0)]
        assert_verified(app)


def test_publish_many_accepts_all_or_nothing(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        with pytest.raises(InvalidInput):
            app.publish_many([Event("order.paid", 1, 1), Event("order paid", 1, 2)])
        assert query(app, "SELECT count(*) FROM event") == [(0,)]
        made = app.publish_many([Event("order.paid", 1, 1), Event("order.paid", 1, UNIQUE), Event("order.paid", 1, 1)])
        assert [item.created for item in made] == [True, True, False]
        assert made[0].deliveries == made[2].deliveries


def test_a_destinations_scope_is_the_deliverys_unless_the_event_names_one(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a", scope="shop-1"))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        two = app.publish("order.paid", 1, event_id=2, scope="shop-2").deliveries[0]
        assert [seen(app, one).scope, seen(app, two).scope] == ["shop-1", "shop-2"]


def test_many_tasks_publish_one_event_once(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))

        async def main() -> list[Any]:
            return await asyncio.gather(*(app.publish_async("order.paid", {"n": 1}, event_id=1) for _ in range(40)))

        made = asyncio.run(main())
        assert sum(item.created for item in made) == 1
        assert len({item.deliveries for item in made}) == 1
        drain(app)
        assert len(receiver.got) == 1


# --- disabled is held -----------------------------------------------------------------------------------


def test_a_disabled_destinations_events_are_held_and_released_by_enable(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        waiting = app.publish("order.paid", 1, event_id="before").deliveries[0]
        assert app.destinations.disable("a", reason="maintenance") == 1
        born = app.publish("order.paid", 1, event_id="while").deliveries[0]
        assert seen(app, born).hold == "destination_disabled"  # before any worker has looked
        drain(app)
        for one in (waiting, born):
            view = seen(app, one)
            assert (view.disposition, view.hold, view.attempt, view.fence) == ("waiting", "destination_disabled", 0, 0)
        assert receiver.connections == 0
        assert app.operations.status().held.count == 2
        assert_verified(app)
        assert app.destinations.enable("a") == 2
        drain(app)
        assert {got.delivery for got in receiver.got} == {waiting, born}
        assert_verified(app)


def test_a_worker_that_meets_a_disabled_destination_gives_the_lease_back_and_holds(tmp_path: Path) -> None:
    """Disabled after the claim, or by a crash between marking and holding: the row itself is not held yet."""
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                # The start's repair is over; now only the registry says so.
                await until(lambda: app.operations.status().workers)
                await until(lambda: seen(app, one).disposition == "delivered")
                with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
                    conn.execute("UPDATE destination SET enabled = 0")
                    conn.execute("UPDATE ledger SET registry = registry + 1")
                    conn.commit()
                await asyncio.sleep(STALE_S + 0.05)
                two = app.publish("order.paid", 1, event_id=2).deliveries[0]
                with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
                    conn.execute("UPDATE delivery_state SET hold = 0 WHERE disposition = 0")
                    conn.commit()
                await until(lambda: seen(app, two).fence == 1)
                await until(lambda: seen(app, two).hold == "destination_disabled")
                view = seen(app, two)
                assert (view.disposition, view.attempt, view.deferrals) == ("waiting", 0, 1)

        asyncio.run(main())
        assert len(receiver.got) == 1


def test_an_event_published_right_after_enable_is_not_held_by_a_workers_older_view(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))

        async def main() -> None:
            async with working(app):
                for turn in range(3):
                    await asyncio.to_thread(app.destinations.disable, "a", reason="test")
                    await asyncio.sleep(STALE_S + 0.05)
                    # The worker looks, and remembers for a while that the destination is disabled.
                    with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
                        held = app.publish("order.paid", 1, event_id=("held", turn)).deliveries[0]
                        conn.execute("UPDATE delivery_state SET hold = 0 WHERE disposition = 0")
                        conn.commit()
                    await until(lambda held=held: seen(app, held).deferrals == 1)  # type: ignore[misc]
                    await asyncio.to_thread(app.destinations.enable, "a")
                    fresh = app.publish("order.paid", 1, event_id=("fresh", turn)).deliveries[0]
                    for one in (held, fresh):
                        await until(lambda one=one: seen(app, one).disposition == "delivered")  # type: ignore[misc]

        asyncio.run(main())
        assert len(receiver.got) == 6
        assert_verified(app)


def test_a_worker_that_starts_finishes_what_a_crash_left_half_done(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("off", plain(receiver, "/off"))
        app.destinations.add("on", plain(receiver, "/on"))
        made = app.publish("order.paid", 1, event_id=1).deliveries
        app.destinations.disable("on", reason="test")
        with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
            # As after a death between the registry's change and the rows'.
            conn.execute("UPDATE destination SET enabled = (name = 'on')")
            conn.commit()
        drain(app)
        assert [got.path for got in receiver.got] == ["/on"]
        assert sorted(str(seen(app, one).hold) for one in made) == ["None", "destination_disabled"]
        assert_verified(app)


def test_410_disables_the_destination_holds_the_rest_and_is_one_dead_letter(tmp_path: Path) -> None:
    def answer(got: Got, number: int) -> Reply:
        return 410

    from redrive.worker.settings import WorkerSettings

    with rig(tmp_path, answer, worker=WorkerSettings(slots=1)) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        app.destinations.add("b", plain(receiver, "/b", overrides=(("410", "delivered"),)))
        made = [app.publish("order.paid", n, event_id=n) for n in range(4)]
        drain(app)
        a = app.destinations.get("a")
        assert (a.enabled, a.disabled_why) == (False, "410 Gone")
        assert app.destinations.get("b").enabled
        assert len(receiver.to("/a")) == 1
        assert len(receiver.to("/b")) == 4
        (letter,) = dead(app)
        assert (letter.cause, letter.category, letter.destination) == ("permanent", "gone", a.destination_id)
        views = [seen(app, one) for item in made for one in item.deliveries]
        assert sum(view.hold == "destination_disabled" for view in views) == 3
        assert query(app, "SELECT action, reason FROM audit WHERE action LIKE '%disable'") == [
            ("destination.disable", "410 Gone")
        ]
        assert_verified(app)


def test_held_work_ends_with_its_age(tmp_path: Path) -> None:
    from tests.acceptance.engine_support import ManualClock

    clock = ManualClock()
    with rig(tmp_path, clock=clock) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        app.destinations.disable("a", reason="test")
        app.publish("order.paid", 1, event_id=1)
        clock.advance(4 * 86_400)

        async def main() -> None:
            async with working(app):
                await until(lambda: dead(app))

        asyncio.run(main())
        (letter,) = dead(app)
        assert (letter.cause, letter.category) == ("age_exhausted", "destination_disabled")
        assert receiver.connections == 0


# --- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event_type",
    ["", "order paid", "order..paid", ".order", "order.", "order.*", "ördér", "a\r\nb", "x" * 500, None, 7],
)
def test_bad_event_types_are_refused(tmp_path: Path, event_type: Any) -> None:
    with make(tmp_path) as app, pytest.raises(InvalidInput) as caught:
        app.publish(event_type, {}, event_id=1)
    assert caught.value.param == "event_type"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tenant": "a\x00"}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"scope": "a\n"}, "scope"),
        ({"content_type": "a/b\r\nX-Injected: 1"}, "content_type"),
        ({"content_type": "text"}, "content_type"),
        ({"content_type": ""}, "content_type"),
        ({"occurred_at": datetime(2030, 1, 1)}, "occurred_at"),  # noqa: DTZ001
        ({"event_id": None}, "event_id"),
        ({"event_id": 1.5}, "event_id"),
        ({"event_id": ""}, "event_id"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_and_store_nothing(tmp_path: Path, options: dict[str, Any], param: str) -> None:
    with make(tmp_path) as app:
        with pytest.raises(InvalidInput) as caught:
            app.publish("order.paid", {}, **{"event_id": 1, **options})
        assert caught.value.param == param
        assert query(app, "SELECT count(*) FROM event") == [(0,)]


@pytest.mark.parametrize(
    "payload",
    [math.nan, {"a": "\ud800"}, b'{"a": NaN}', b"{", b"\xff", '{"a": "\\ud800"}', b"1e999", b"", "\ud800"],
    ids=repr,
)
def test_what_is_not_json_is_not_published_as_json(tmp_path: Path, payload: Any) -> None:
    with make(tmp_path) as app:
        with pytest.raises(InvalidInput) as caught:
            app.publish("order.paid", payload, event_id=1)
        assert caught.value.param == "payload"
        assert query(app, "SELECT count(*) FROM event") == [(0,)]


def test_a_payload_over_the_limit_is_refused(tmp_path: Path) -> None:
    with make(tmp_path, max_payload_bytes=10) as app:
        app.publish("order.paid", b'"12345678"', event_id=1)
        with pytest.raises(PayloadTooLarge):
            app.publish("order.paid", b'"123456789"', event_id=2)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://127.1:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://localhost:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://10.0.0.1:{port}/",
        "http://169.254.169.254:{port}/",
        "https://example.com:8443/",
        "http://example.com/",
    ],
)
def test_forbidden_addresses_are_refused_when_a_destination_is_made(tmp_path: Path, url: str) -> None:
    from redrive.webhooks.guard import AddressPolicy

    with Receiver() as receiver:
        policy = AddressPolicy.build([], [443, receiver.port], allow_http="example" not in url)
        with make(tmp_path, address_policy=policy) as app:
            given = settings(url.format(port=receiver.port), secrets=())
            with pytest.raises(ForbiddenAddress) as caught:
                app.destinations.add("a", given)
            assert caught.value.param == "url"
            assert query(app, "SELECT count(*) FROM destination") == [(0,)]
        assert receiver.connections == 0


@pytest.mark.parametrize(
    "options",
    [
        {"url": "not a url"},
        {"url": "ftp://example.com/"},
        {"url": "https://user:pw@example.com/"},
        {"url": "https://example.com\\@evil.example/"},
        {"url": "https://example.com/\r\nX: 1"},
        {"headers": (("X-A", "a\r\nX-Injected: 1"),)},
        {"headers": (("X-A", "a\x00"),)},
        {"headers": (("X A", "a"),)},
        {"headers": (("X-A", 7),)},
        {"headers": (("Webhook-Id", "a"),)},
        {"headers": (("Host", "a"),)},
        {"headers": (("Authorization", "Bearer abcdefabcdefabcdef"),)},
        {"event_types": ("order.",)},
        {"secrets": (SigningSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),)},
        {"secrets": (SigningSecret("file:relative"),)},
        {"acknowledge": "abc"},
        {"confirm": "a b"},
    ],
    ids=str,
)
def test_bad_destinations_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        DestinationSettings(**{"url": "https://example.com/", **options})
    assert caught.value.param in {"url", "headers", "event_types", "secrets", "acknowledge", "confirm", "secret"}
    assert "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" not in str(caught.value)
    assert "abcdefabcdef" not in str(caught.value)


def test_names_of_destinations(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a"))
        with pytest.raises(Conflict):
            app.destinations.add("a", plain(receiver, "/b"))
        app.destinations.add("a", plain(receiver, "/b"), tenant="other")
        for bad in ("", "a b", "a\n"):
            with pytest.raises(InvalidInput):
                app.destinations.add(bad, plain(receiver, "/b"))
        with pytest.raises(NotFound):
            app.destinations.disable("nobody", reason="test")
        for blank in ("", " ", "\n\t"):
            with pytest.raises(InvalidInput) as caught:
                app.destinations.disable("a", reason=blank)
            assert caught.value.param == "reason"
        assert app.destinations.get("a").enabled
        with pytest.raises(PayloadInvalid):
            app.publish("order.paid", b"{", event_id=1)


def test_a_change_of_url_keeps_the_identity_of_deliveries(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        made = app.destinations.add("a", plain(receiver, "/old"))
        one = app.publish("order.paid", 1, event_id=1).deliveries
        app.destinations.change("a", plain(receiver, "/new"))
        assert app.destinations.get("a").destination_id == made.destination_id
        assert app.publish("order.paid", 1, event_id=1).deliveries == one
        drain(app)
        assert [got.path for got in receiver.got] == ["/new"]
        assert tries(app, one[0]) == [("delivered", "ok")]


def test_publishing_writes_when_it_happened(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        app.publish("order.paid", 1, event_id=1, occurred_at=datetime(2026, 8, 21, 2, tzinfo=UTC))
        assert query(app, "SELECT occurred_at FROM event") == [(1_787_277_600_000_000,)]
