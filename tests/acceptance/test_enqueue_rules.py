"""Enqueue: identity, duplicates and conflicts, delays, and input that is refused."""

from __future__ import annotations

import asyncio
import math
import uuid
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    ManualClock,
    assert_verified,
    dead,
    drain,
    make,
    query,
    seen,
    until,
    working,
)

from redrive import UNIQUE, Conflict, Context, InvalidInput, Redrive
from redrive.app import JobSpec
from redrive.errors import PayloadInvalid, PayloadTooLarge


async def nothing(context: Context, payload: Any) -> None:
    pass


def counting(folder: Path, **options: Any) -> Redrive:
    app = make(folder, **options)
    app.handler("job", policy=FAST)(nothing)
    return app


def stored(app: Redrive) -> int:
    count: int = query(app, "SELECT count(*) FROM delivery")[0][0]
    return count


# --- duplicates and conflicts ---------------------------------------------------------------------------


def test_the_same_work_again_returns_the_first_delivery_and_says_so(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        first = app.enqueue("job", {"a": 1, "b": [2]}, key=("order", 7))
        again = app.enqueue("job", {"b": [2], "a": 1}, key=("order", 7), priority=0, delay=60)
        assert first.created
        assert not again.created
        assert again.delivery_id == first.delivery_id
        assert stored(app) == 1
        assert seen(app, first.delivery_id).priority == 2  # the first one stands
        drain(app)
        assert not app.enqueue("job", {"a": 1, "b": [2]}, key=("order", 7)).created
        assert seen(app, first.delivery_id).disposition == "delivered"
        assert_verified(app)


def test_another_payload_under_the_same_key_is_a_conflict_and_nothing_is_accepted_with_it(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        first = app.enqueue("job", {"n": 1}, key=1)
        specs = [JobSpec("job", {"n": 5}, 5), JobSpec("job", {"n": 2}, 1), JobSpec("job", {"n": 6}, 6)]
        with pytest.raises(Conflict) as caught:
            app.enqueue_many(specs)
        assert (caught.value.param, caught.value.exit_status) == ("key", 6)
        assert "'1'" in str(caught.value)
        assert stored(app) == 1
        assert query(app, "SELECT count(*) FROM identity") == [(1,)]
        assert app.operations.payload(first.delivery_id) == ("application/json", b'{"n":1}')
        assert app.enqueue("job", {"n": 5}, key=5).created
        assert_verified(app)


def test_the_same_key_of_another_tenant_or_handler_is_other_work(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        app.handler("other")(nothing)
        jobs = [app.enqueue("job", key=1), app.enqueue("job", key=1, tenant="b"), app.enqueue("other", key=1)]
        assert len({job.delivery_id for job in jobs}) == 3
        assert all(job.created for job in jobs)


def test_enqueue_many_accepts_all_or_nothing(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        good = JobSpec("job", 1, "a")
        for bad in (JobSpec("job", math.nan, "b"), JobSpec("nobody", 1, "b"), JobSpec("job", 1, "b", priority=9)):
            with pytest.raises(InvalidInput):
                app.enqueue_many([good, bad])
        assert stored(app) == 0
        made = app.enqueue_many([good, JobSpec("job", 1, "b"), good])
        assert [job.created for job in made] == [True, True, False]
        assert made[0].delivery_id == made[2].delivery_id
        assert app.enqueue_many([]) == []
        assert stored(app) == 2


def test_repeats_are_listed_with_path_and_producer_up_to_a_bound_and_counted_beyond(tmp_path: Path) -> None:
    with counting(tmp_path, producer="shop-1") as app:
        job = app.enqueue("job", {"n": 1}, key=1)
        for _ in range(20):
            app.enqueue("job", {"n": 1}, key=1)
        for _ in range(3):
            with pytest.raises(Conflict):
                app.enqueue("job", {"n": 2}, key=1)
        listed = query(app, "SELECT decided, path, producer FROM repeat ORDER BY number")
        assert listed == [("duplicate", "library", "shop-1")] * 8
        assert query(app, "SELECT duplicates, conflicts FROM repeat_count") == [(20, 3)]
        status = app.operations.status()
        assert (status.duplicates.count, status.conflicts.count) == (20, 3)
        kinds = [entry.kind for entry in app.operations.timeline(job.delivery_id)]
        assert sum("duplicate" in kind for kind in kinds) >= 8
        assert_verified(app)


def test_conflicts_are_listed_with_path_and_producer(tmp_path: Path) -> None:
    with counting(tmp_path, producer="shop-2") as app:
        app.enqueue("job", {"n": 1}, key=1)
        with pytest.raises(Conflict):
            app.enqueue("job", {"n": 2}, key=1)
        assert query(app, "SELECT decided, path, producer FROM repeat") == [("conflict", "library", "shop-2")]


# --- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["a", "ü" * 50, 0, -1, 2**200, True, b"\x00\xff", uuid.UUID(int=7), ("a", 1, None), ["a", ("b", 2)], ("", "x")],
    ids=repr,
)
def test_keys_of_every_type_name_work(tmp_path: Path, key: Any) -> None:
    with counting(tmp_path) as app:
        first, again = app.enqueue("job", key=key), app.enqueue("job", key=key)
        assert (first.created, again.created) == (True, False)
        assert first.delivery_id == again.delivery_id


def test_keys_of_different_types_are_different_work(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        keys: list[Any] = [1, "1", True, b"1", (1, 1), (11,), "é", "e\u0301"]
        assert len({app.enqueue("job", key=key).delivery_id for key in keys}) == len(keys)


@pytest.mark.parametrize("key", [None, "", (), b"", (None, ""), 1.5, {"a": 1}, object(), "x" * 5000, 2**300, "\ud800"])
def test_missing_and_bad_keys_are_refused(tmp_path: Path, key: Any) -> None:
    with counting(tmp_path) as app:
        with pytest.raises(InvalidInput) as caught:
            app.enqueue("job", key=key)
        assert caught.value.param == "key"
        assert stored(app) == 0


def test_a_key_left_out_of_the_async_call_is_refused_too(tmp_path: Path) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput) as caught:
        asyncio.run(app.enqueue_async("job", {"n": 1}))
    assert caught.value.param == "key"


def test_unique_must_be_said_and_makes_new_work_each_time(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        jobs = [app.enqueue("job", {"n": 1}, key=UNIQUE) for _ in range(3)]
        assert len({job.delivery_id for job in jobs}) == 3
        assert all(job.created for job in jobs)


# --- delay, at, priority --------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [-1, -0.001, math.nan, math.inf, -math.inf, 1e300, 10**12, True, "soon", "-5s", b"5"])
def test_bad_delays_are_refused(tmp_path: Path, delay: Any) -> None:
    with counting(tmp_path) as app:
        with pytest.raises(InvalidInput) as caught:
            app.enqueue("job", key=1, delay=delay)
        assert caught.value.param == "delay"
        assert stored(app) == 0


@pytest.mark.parametrize("at", [datetime(2030, 1, 1), "2030-01-01T00:00:00Z", 1_893_456_000])  # noqa: DTZ001
def test_naive_datetimes_and_other_times_are_refused(tmp_path: Path, at: Any) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput) as caught:
        app.enqueue("job", key=1, at=at)
    assert caught.value.param == "at"


@pytest.mark.parametrize("priority", [-1, 4, True, "1", None, 1.5, []])
def test_bad_priorities_are_refused(tmp_path: Path, priority: Any) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput) as caught:
        app.enqueue("job", key=1, priority=priority)
    assert caught.value.param == "priority"


@pytest.mark.parametrize("seconds", [0, 1, 86_400, 10**10])
def test_a_time_more_than_ten_years_ahead_is_refused_as_a_delay_is(tmp_path: Path, seconds: int) -> None:
    clock = ManualClock()
    bound = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now, days=3650)
    with counting(tmp_path, clock=clock) as app:
        if seconds == 0:
            assert app.enqueue("job", key=1, at=bound).created
            return
        for given in ({"at": bound + timedelta(seconds=seconds)}, {"delay": timedelta(days=3650, seconds=seconds)}):
            with pytest.raises(InvalidInput, match="is longer than ten years") as caught:
                app.enqueue("job", key=1, **given)
            assert caught.value.param == next(iter(given))
        assert stored(app) == 0


def test_the_bound_of_at_is_by_this_hosts_clock(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        assert app.enqueue("job", key=1, at=datetime.now(UTC) + timedelta(days=3649)).created
        for at in (datetime.now(UTC) + timedelta(days=3651), datetime(9999, 1, 1, tzinfo=UTC)):
            with pytest.raises(InvalidInput):
                app.enqueue("job", key=2, at=at)
        assert app.enqueue("job", key=3, at=datetime(1, 1, 1, tzinfo=UTC)).created  # due since long ago


def test_delay_and_at_together_are_refused(tmp_path: Path) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput):
        app.enqueue("job", key=1, delay=1, at=datetime.now(UTC))


def test_delay_and_at_set_when_the_work_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    with counting(tmp_path, clock=clock) as app:
        at = datetime(2032, 6, 1, 12, 30, 15, 250_001, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        due = {
            "s": app.enqueue("job", key="s", delay=1.5),
            "text": app.enqueue("job", key="text", delay="1h30m"),
            "delta": app.enqueue("job", key="delta", delay=timedelta(days=2)),
            "zero": app.enqueue("job", key="zero", delay=0),
            "at": app.enqueue("job", key="at", at=at),
            "past": app.enqueue("job", key="past", at=datetime(1990, 1, 1, tzinfo=UTC)),
        }
        views = {name: seen(app, job.delivery_id) for name, job in due.items()}
        accepted = {name: view.first_queued_at for name, view in views.items()}
        waits = {name: view.available_at - accepted[name] for name, view in views.items()}
        assert waits["s"] == 1_500_000
        assert waits["text"] == 5_400_000_000
        assert waits["delta"] == 2 * 86_400_000_000
        assert waits["zero"] == 0
        assert views["at"].available_at == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        # Waiting for its hour is not ageing; but a time in the past does not make work old before it came.
        ages = {name: view.deadline_at - view.available_at for name, view in views.items()}
        assert {ages[name] for name in ("s", "text", "delta", "zero", "at")} == {FAST.max_age}
        assert views["past"].deadline_at == accepted["past"] + FAST.max_age


def test_a_delayed_job_does_not_run_early_and_its_age_starts_when_it_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    with counting(tmp_path, clock=clock) as app:
        month = app.enqueue("job", key=1, delay="30d")  # far more than its age budget of a day
        soon = app.enqueue("job", key=2, delay=10)

        async def main() -> None:
            async with working(app):
                clock.advance(9.999)
                app.enqueue("job", key=3)  # wakes the worker
                await until(lambda: query(app, "SELECT 1 FROM attempt"))
                assert [seen(app, job.delivery_id).fence for job in (month, soon)] == [0, 0]
                clock.advance(0.001)
                await until(lambda: seen(app, soon.delivery_id).disposition == "delivered")
                clock.advance(30 * 86_400 - 11)
                app.enqueue("job", key=4)
                await until(lambda: query(app, "SELECT count(*) FROM attempt") == [(3,)])
                assert seen(app, month.delivery_id).disposition == "waiting"
                clock.advance(1)
                await until(lambda: seen(app, month.delivery_id).disposition == "delivered")

        asyncio.run(main())
        assert dead(app) == []
        assert_verified(app)


def test_priority_decides_what_runs_first(tmp_path: Path) -> None:
    from redrive.worker.settings import WorkerSettings

    ran: list[int] = []
    with make(tmp_path, worker=WorkerSettings(slots=1)) as app:

        @app.handler("job")
        async def job(context: Context, payload: int) -> None:
            ran.append(payload)

        for priority in (3, 1, 2, 0, 1):
            app.enqueue("job", priority, key=UNIQUE, priority=priority)
        drain(app)
    assert ran == [0, 1, 1, 2, 3]


def test_priority_holds_within_one_handler_and_handlers_take_turns(tmp_path: Path) -> None:
    from redrive.worker.settings import WorkerSettings

    ran: list[str] = []
    with make(tmp_path, worker=WorkerSettings(slots=1)) as app:

        async def note(context: Context, payload: Any) -> None:
            ran.append(context.handler)

        for name in ("bulk", "urgent"):
            app.handler(name)(note)
        app.enqueue_many([JobSpec("urgent", key=number, priority=0) for number in range(30)])
        app.enqueue("bulk", key=1, priority=3)
        drain(app)
    assert len(ran) == 31
    assert ran.index("bulk") < 29  # its low priority among the other handler's work does not make it wait for all


# --- payloads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"a": [1, {"b": math.nan}]}, "$.a[1].b"),
        ([math.inf], "$[0]"),
        ({"x": -math.inf}, "$.x"),
        ({"name": "\ud800"}, "$.name"),
        ({"\udfff": 1}, "$["),
        ({"when": datetime(2030, 1, 1, tzinfo=UTC)}, "$.when"),
        ({"raw": b"x"}, "$.raw"),
        ({1: "x"}, "$["),
        ({"a": {1, 2}}, "$.a"),
    ],
    ids=repr,
)
def test_what_is_not_json_is_refused_with_its_path(tmp_path: Path, payload: Any, path: str) -> None:
    with counting(tmp_path) as app:
        with pytest.raises(PayloadInvalid) as caught:
            app.enqueue("job", payload, key=1)
        assert caught.value.param == "payload"
        assert path in str(caught.value)
        assert stored(app) == 0


def test_a_payload_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with counting(tmp_path) as app, pytest.raises(PayloadInvalid):
        app.enqueue("job", loop, key=1)


def test_the_limit_of_a_payload_is_exact(tmp_path: Path) -> None:
    with counting(tmp_path, max_payload_bytes=20) as app:
        assert app.enqueue("job", "x" * 18, key=1).created  # and two quotes
        with pytest.raises(PayloadTooLarge) as caught:
            app.enqueue("job", "x" * 19, key=2)
        assert (caught.value.param, caught.value.http_status) == ("payload", 413)
        assert stored(app) == 1


@pytest.mark.parametrize("field", ["tenant", "scope", "destination"])
@pytest.mark.parametrize("value", ["a\x00", " a", "a\n", "\ud800", "x" * 300, 7])
def test_bad_names_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput) as caught:
        app.enqueue("job", key=1, **{field: value})
    assert caught.value.param == field


def test_webhooks_are_published_and_not_enqueued(tmp_path: Path) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput):
        app.enqueue("webhook", {}, key=1, allow_unknown=True)
