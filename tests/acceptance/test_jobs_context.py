"""What a handler is told, how handlers are registered, and work that a worker does not know or cannot read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    MS,
    ManualClock,
    assert_verified,
    dead,
    drain,
    make,
    query,
    seen,
    tamper,
    tries,
    until,
    working,
)

from redrive import Context, InvalidInput, Policy, Redrive, Retry
from redrive.errors import ConfigError, UnknownHandler


async def nothing(context: Context, payload: Any) -> None:
    pass


# --- the context ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_context_says_what_the_attempt_is_and_keeps_saying_it(tmp_path: Path, kind: str) -> None:
    told: list[dict[str, Any]] = []
    names = "delivery_id attempt_id handler tenant scope destination generation attempt max_attempts fence ambiguous"

    def sync(context: Context, payload: Any) -> None:
        before = {name: getattr(context, name) for name in names.split()}
        assert context.holds_lease()
        assert {name: getattr(context, name) for name in names.split()} == before
        told.append(before)
        raise Retry

    async def asynchronous(context: Context, payload: Any) -> None:
        sync(context, payload)

    with make(tmp_path) as app:
        app.handler("job", policy=FAST)(sync if kind == "sync" else asynchronous)
        job = app.enqueue("job", key="k", tenant="acme", scope="shop-7", destination="crm")
        drain(app)
        constant = {
            "delivery_id": job.delivery_id,
            "handler": "job",
            "tenant": "acme",
            "scope": "shop-7",
            "destination": "crm",
            "generation": 0,
            "max_attempts": 3,
            "ambiguous": False,
        }
        assert [{name: item[name] for name in constant} for item in told] == [constant] * 3
        assert [(item["attempt"], item["fence"]) for item in told] == [(1, 1), (2, 2), (3, 3)]
        assert len({item["attempt_id"] for item in told}) == 3
        recorded = [attempt.id for attempt in app.operations.attempts(job.delivery_id)]
        assert [item["attempt_id"] for item in told] == recorded
        view = seen(app, job.delivery_id)
        assert (view.tenant, view.scope, view.destination, view.key) == ("acme", "shop-7", "crm", "k")


def test_defaults_of_tenant_scope_and_destination(tmp_path: Path) -> None:
    told: list[Any] = []
    with make(tmp_path) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            told.append((context.tenant, context.scope, context.destination, payload))

        app.enqueue("job", key=1)
        drain(app)
    assert told == [("default", None, "", None)]


# --- registration ---------------------------------------------------------------------------------------


def test_a_decorator_returns_the_function_and_registers_on_its_own_application_only(tmp_path: Path) -> None:
    one = Redrive(f"sqlite:///{tmp_path / 'a.db'}")
    two = Redrive(f"sqlite:///{tmp_path / 'b.db'}")
    assert one.handler("job")(nothing) is nothing
    assert (one.handlers, two.handlers) == (("job", "webhook"), ("webhook",))
    assert list(tmp_path.iterdir()) == []  # nothing was opened


def test_a_handler_cannot_be_registered_twice_or_take_a_built_in_name(tmp_path: Path) -> None:
    with make(tmp_path, init=False) as app:
        app.handler("job")(nothing)
        for name in ("job", "webhook"):
            with pytest.raises(ConfigError) as caught:
                app.handler(name)(nothing)
            assert caught.value.param == "name"
        assert app.handlers == ("job", "webhook")


def test_a_confirm_function_is_async_and_named_once(tmp_path: Path) -> None:
    async def confirm(sent: Any) -> bool | None:
        return True

    with make(tmp_path, init=False) as app:
        assert app.confirm("ask")(confirm) is confirm
        with pytest.raises(ConfigError):
            app.confirm("ask")
        with pytest.raises(ConfigError) as caught:
            app.confirm("sync")(lambda sent: True)  # type: ignore[arg-type, return-value]
        assert caught.value.param == "confirm"


@pytest.mark.parametrize("name", ["", " job", "job\n", "jöb", "a b", "-x", "x" * 300, "a\x00", None, 7])
def test_bad_handler_names_are_refused(tmp_path: Path, name: Any) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(InvalidInput) as caught:
        app.handler(name)
    assert caught.value.param == "name"


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, "soon", 1e12], ids=str)
def test_bad_timeouts_are_refused(tmp_path: Path, timeout: Any) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(InvalidInput) as caught:
        app.handler("job", timeout=timeout)(nothing)
    assert caught.value.param == "timeout"


@pytest.mark.parametrize("versions", [{0: json.loads}, {True: json.loads}, {"1": json.loads}, {40_000: json.loads}])
def test_bad_envelope_versions_are_refused(tmp_path: Path, versions: Any) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(ConfigError):
        app.handler("job", decoders=versions)(nothing)


def test_a_handler_must_be_able_to_read_what_it_writes(tmp_path: Path) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(ConfigError) as caught:
        app.handler("job", envelope_version=2)(nothing)
    assert caught.value.param == "envelope_version"


def test_an_unknown_word_for_unknown_is_refused(tmp_path: Path) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(ConfigError) as caught:
        app.handler("job", unknown="ignore")(nothing)
    assert caught.value.param == "unknown"


# --- handlers that a worker does not have ---------------------------------------------------------------


def test_enqueue_for_an_unknown_handler_is_an_error_and_stores_nothing(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        with pytest.raises(UnknownHandler) as caught:
            app.enqueue("elsewhere", key=1)
        assert caught.value.param == "handler"
        assert query(app, "SELECT count(*) FROM identity") == [(0,)]


def test_work_of_an_unknown_handler_waits_uncharged_for_an_application_that_has_it(tmp_path: Path) -> None:
    ran: list[str] = []

    async def note(context: Context, payload: Any) -> None:
        ran.append(f"{context.handler} {context.attempt} {context.fence}")

    with make(tmp_path) as old:
        old.handler("known")(note)
        strange = old.enqueue("strange", {"n": 1}, key=1, policy=Policy(), allow_unknown=True)
        old.enqueue("known", key=1)
        drain(old)
        view = seen(old, strange.delivery_id)
        assert ran == ["known 1 1"]
        assert (view.disposition, view.attempt, view.fence, view.deferrals) == ("waiting", 0, 0, 0)
        assert [item.handler for item in old.operations.status().unclaimed] == ["strange"]
        with make(tmp_path, init=False) as new:
            new.handler("strange")(note)
            drain(new)
        assert ran == ["known 1 1", "strange 1 1"]
        assert seen(old, strange.delivery_id).disposition == "delivered"
        assert_verified(old)


def test_an_unknown_handlers_work_is_dead_as_unknown_handler_when_its_age_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    with make(tmp_path, clock=clock) as app:
        app.enqueue("strange", key=1, policy=Policy(), allow_unknown=True)
        clock.advance(24 * 3600 + 1)

        async def main() -> None:
            async with working(app):
                await until(lambda: dead(app))

        asyncio.run(main())
        (letter,) = dead(app)
        assert (letter.cause, letter.category, letter.attempts) == ("age_exhausted", "unknown_handler", 0)
        assert_verified(app)


# --- decoders side by side ------------------------------------------------------------------------------


def decode_v2(body: bytes) -> Any:
    return {"v2": json.loads(body)}


def test_a_newer_envelope_is_left_uncharged_by_an_old_worker_and_run_by_a_new_one(tmp_path: Path) -> None:
    ran: list[Any] = []

    async def note(context: Context, payload: Any) -> None:
        ran.append((payload, context.attempt, context.fence))

    with make(tmp_path) as old, make(tmp_path, init=False) as new:
        old.handler("job")(note)
        new.handler("job", decoders={1: json.loads, 2: decode_v2}, envelope_version=2)(note)
        newer = new.enqueue("job", {"n": 2}, key="new")
        older = old.enqueue("job", {"n": 1}, key="old")
        drain(old)
        assert ran == [({"n": 1}, 1, 1)]
        view = seen(old, newer.delivery_id)
        assert (view.disposition, view.attempt, view.fence, view.envelope_version) == ("waiting", 0, 0, 2)
        third = old.enqueue("job", {"n": 3}, key="third")
        drain(new)  # it reads both
        assert sorted(map(str, ran[1:])) == ["({'n': 3}, 1, 1)", "({'v2': {'n': 2}}, 1, 1)"]
        for job in (newer, older, third):
            assert seen(old, job.delivery_id).disposition == "delivered"
        assert_verified(old)


def test_the_same_work_in_two_envelopes_is_one_delivery(tmp_path: Path) -> None:
    with make(tmp_path) as old, make(tmp_path, init=False) as new:
        old.handler("job")(nothing)
        new.handler("job", decoders={1: json.loads, 2: decode_v2}, envelope_version=2)(nothing)
        first, second = old.enqueue("job", {"n": 1}, key=1), new.enqueue("job", {"n": 1}, key=1)
        assert (second.delivery_id, second.created) == (first.delivery_id, False)


def test_an_envelope_that_nobody_reads_is_dead_as_undecodable_when_its_age_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    with make(tmp_path, clock=clock) as old, make(tmp_path, init=False, clock=clock) as new:
        old.handler("job")(nothing)
        new.handler("job", policy=Policy(max_age=60_000 * MS), decoders={2: decode_v2}, envelope_version=2)(nothing)
        new.enqueue("job", key=1)
        clock.advance(61)

        async def main() -> None:
            async with working(old):
                await until(lambda: dead(old))

        asyncio.run(main())
        (letter,) = dead(old)
        assert (letter.cause, letter.category, letter.attempts) == ("age_exhausted", "undecodable", 0)
        assert_verified(old)


@pytest.mark.parametrize("damage", [b'{"n": 2}', b"\xff\xfe", b""], ids=["changed", "not text", "empty"])
def test_a_corrupt_payload_goes_to_quarantine_at_once(tmp_path: Path, damage: bytes) -> None:
    ran: list[Any] = []
    with make(tmp_path) as app:

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            ran.append(payload)

        bad = app.enqueue("job", {"n": 1}, key=1)
        good = app.enqueue("job", {"n": 1}, key=2)
        tamper(app, "UPDATE delivery SET payload = ? WHERE key = '1'", damage)
        drain(app)
        assert ran == [{"n": 1}]
        assert tries(app, bad.delivery_id) == [("permanent", "undecodable")]
        assert seen(app, good.delivery_id).disposition == "delivered"
        (letter,) = dead(app)
        assert (letter.cause, letter.category, letter.attempts) == ("permanent", "undecodable", 1)


def test_a_decoder_that_raises_is_a_corrupt_envelope(tmp_path: Path) -> None:
    def picky(body: bytes) -> Any:
        raise KeyError(body.decode())

    with make(tmp_path) as app:
        app.handler("job", policy=FAST, decoders={1: picky})(nothing)
        job = app.enqueue("job", {"card": "4111"}, key=1)
        drain(app)
        assert tries(app, job.delivery_id) == [("permanent", "undecodable")]
