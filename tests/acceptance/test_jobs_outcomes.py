"""What a handler returns or raises, and what becomes of the delivery."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    ONCE,
    assert_verified,
    attempts,
    dead,
    drain,
    make,
    query,
    seen,
    tries,
    until,
    working,
)

from redrive import Context, NoOp, Permanent, Policy, Retry, Unknown
from redrive.errors import ConfigError
from redrive.worker.settings import WorkerSettings


def outcome_of(folder: Path, function: Any, policy: Policy = ONCE, **options: Any) -> tuple[str, list[tuple[str, str]]]:
    """How one delivery ended: its disposition and its attempts."""
    with make(folder) as app:
        app.handler("job", policy=policy, **options)(function)
        job = app.enqueue("job", {"n": 1}, key=1)
        drain(app)
        assert_verified(app)
        return seen(app, job.delivery_id).disposition, tries(app, job.delivery_id)


def raiser(kind: str, error: BaseException | type[BaseException]) -> Any:
    if kind == "sync":

        def sync(context: Context, payload: Any) -> None:
            raise error

        return sync

    async def asynchronous(context: Context, payload: Any) -> None:
        raise error

    return asynchronous


both = pytest.mark.parametrize("kind", ["async", "sync"])


def test_async_and_sync_handlers_receive_the_payload(tmp_path: Path) -> None:
    got: dict[str, Any] = {}
    with make(tmp_path) as app:

        @app.handler("a")
        async def a(context: Context, payload: Any) -> None:
            got["a"] = (payload, threading.current_thread() is threading.main_thread())

        @app.handler("s")
        def s(context: Context, payload: Any) -> None:
            got["s"] = (payload, threading.current_thread() is threading.main_thread())

        payload = {"text": "grüße\u0000", "n": [1, 2.5, None, True]}
        jobs = [app.enqueue(name, payload, key=1) for name in ("a", "s")]
        drain(app)
        assert got == {"a": (payload, True), "s": (payload, False)}
        assert [seen(app, job.delivery_id).disposition for job in jobs] == ["delivered", "delivered"]
        assert_verified(app)


@both
@pytest.mark.parametrize(
    ("error", "ends", "attempt"),
    [
        (NoOp, "no_op", ("no_op", "nothing_to_do")),
        (Permanent("policy"), "dead", ("permanent", "policy")),
        (Permanent, "dead", ("permanent", "rejected")),
        (Retry, "dead", ("retryable", "retry_requested")),
        (Unknown, "dead", ("unknown", "handler_error")),
        (ValueError("secret data"), "dead", ("retryable", "handler_error")),
        (StopIteration(), "dead", ("retryable", "handler_error")),
        (TimeoutError(), "dead", ("retryable", "handler_error")),
    ],
    ids=lambda value: (
        getattr(value, "__name__", None) or (type(value).__name__ if isinstance(value, Exception) else "")
    ),
)
def test_each_signal_has_its_outcome(
    tmp_path: Path, kind: str, error: Any, ends: str, attempt: tuple[str, str]
) -> None:
    assert outcome_of(tmp_path, raiser(kind, error)) == (ends, [attempt])


@both
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()], ids=repr)
def test_what_is_not_an_exception_ends_one_attempt_and_not_the_worker(
    tmp_path: Path, kind: str, error: BaseException
) -> None:
    with make(tmp_path) as app:
        app.handler("bad", policy=FAST)(raiser(kind, error))

        @app.handler("good")
        async def good(context: Context, payload: Any) -> None:
            pass

        bad = app.enqueue("bad", key=1)
        fine = [app.enqueue("good", key=n) for n in range(5)]
        drain(app)
        assert tries(app, bad.delivery_id) == [("retryable", "handler_error")] * 3
        assert all(seen(app, job.delivery_id).disposition == "delivered" for job in fine)
        assert_verified(app)


@pytest.mark.parametrize("value", [0, False, "no", {"status": "failed"}, object(), ValueError()], ids=repr)
def test_what_a_handler_returns_does_not_matter(tmp_path: Path, value: object) -> None:
    assert outcome_of(tmp_path, lambda context, payload: value) == ("delivered", [("delivered", "ok")])


def test_a_function_that_hands_back_a_coroutine_is_awaited(tmp_path: Path) -> None:
    ran: list[Any] = []

    async def real(extra: str, context: Context, payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append((extra, payload))

    class Callable:
        async def __call__(self, context: Context, payload: Any) -> None:
            ran.append("object")

    def wrapped(context: Context, payload: Any) -> Any:
        return real("wrapped", context, payload)

    with make(tmp_path) as app:
        app.handler("partial")(functools.partial(real, "partial"))
        app.handler("wrapped")(wrapped)
        app.handler("object")(Callable())
        for name in ("partial", "wrapped", "object"):
            app.enqueue(name, 7, key=1)
        drain(app)
    assert sorted(map(str, ran)) == ["('partial', 7)", "('wrapped', 7)", "object"]


def test_a_coroutine_that_a_function_hands_back_can_fail(tmp_path: Path) -> None:
    def wrapped(context: Context, payload: Any) -> Any:
        return raiser("async", Permanent("gone"))(context, payload)

    assert outcome_of(tmp_path, wrapped) == ("dead", [("permanent", "gone")])


def test_generators_are_no_handlers(tmp_path: Path) -> None:
    def generator(context: Context, payload: Any) -> Any:
        yield

    async def async_generator(context: Context, payload: Any) -> Any:
        yield

    with make(tmp_path, init=False) as app:
        for function in (generator, async_generator, "not a function"):
            with pytest.raises(ConfigError) as caught:
                app.handler("job")(function)  # type: ignore[type-var]
            assert caught.value.param == "handler"
        assert app.handlers == ("webhook",)


@both
def test_retry_after_is_a_floor(tmp_path: Path, kind: str) -> None:
    with make(tmp_path, random=lambda: 0.0) as app:
        calls: list[float] = []

        def sync(context: Context, payload: Any) -> None:
            calls.append(time.monotonic())
            if len(calls) == 1:
                raise Retry(after=0.3)

        async def asynchronous(context: Context, payload: Any) -> None:
            sync(context, payload)

        app.handler("job", policy=FAST)(sync if kind == "sync" else asynchronous)
        job = app.enqueue("job", key=1)
        drain(app)
        first, second = attempts(app, job.delivery_id)
        assert first.retry_after_us == 300_000
        assert first.next_at == first.ended_at + 300_000
        assert second.started_at >= first.next_at
        assert calls[1] - calls[0] >= 0.3


def test_outcomes_map_exceptions_by_class_and_the_most_derived_wins(tmp_path: Path) -> None:
    class Ours(Exception):
        pass

    class Worse(Ours):
        pass

    outcomes: Any = {Ours: Permanent("policy"), Worse: NoOp(), KeyError: Unknown(), OSError: Retry(after=0)}
    with make(tmp_path) as app:

        @app.handler("job", policy=ONCE, outcomes=outcomes)
        async def job(context: Context, payload: Any) -> None:
            raise {"ours": Ours, "worse": Worse, "key": KeyError, "os": FileNotFoundError, "other": ValueError}[payload]

        jobs = {name: app.enqueue("job", name, key=name) for name in ("ours", "worse", "key", "os", "other")}
        drain(app)
        assert {name: tries(app, job.delivery_id) for name, job in jobs.items()} == {
            "ours": [("permanent", "policy")],
            "worse": [("no_op", "nothing_to_do")],
            "key": [("unknown", "handler_error")],
            "os": [("retryable", "retry_requested")],
            "other": [("retryable", "handler_error")],
        }


@pytest.mark.parametrize(
    "outcomes",
    [{"ValueError": Permanent()}, {ValueError: "permanent"}, {ValueError: Permanent}, {int: NoOp()}],
    ids=str,
)
def test_outcomes_that_cannot_work_are_refused(tmp_path: Path, outcomes: Any) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(ConfigError) as caught:
        app.handler("job", outcomes=outcomes)
    assert caught.value.param == "outcomes"


def test_an_exception_message_is_never_on_the_ledger(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        app.handler("job", policy=FAST)(raiser("async", RuntimeError("card 4111111111111111")))
        app.enqueue("job", key=1)
        drain(app)
        path = app.ledger.path
    for file in tmp_path.iterdir():
        assert b"4111111111111111" not in file.read_bytes(), file
    assert path.exists()


# --- timeouts -------------------------------------------------------------------------------------------


def test_an_async_handler_past_its_timeout_is_cancelled_and_unknown(tmp_path: Path) -> None:
    cancelled: list[int] = []

    async def slow(context: Context, payload: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(context.attempt)
            raise

    started = time.monotonic()
    assert outcome_of(tmp_path, slow, FAST, timeout=0.05) == ("dead", [("unknown", "handler_timeout")] * 3)
    assert cancelled == [1, 2, 3]
    assert time.monotonic() - started < 10


def test_a_handlers_own_timeout_error_is_not_the_handlers_timeout(tmp_path: Path) -> None:
    async def own(context: Context, payload: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    assert outcome_of(tmp_path, own, timeout=30) == ("dead", [("retryable", "handler_error")])


def test_a_sync_handler_past_its_timeout_is_unknown_at_once_and_keeps_its_slot(tmp_path: Path) -> None:
    """The outcome does not wait for a thread that may never come back; the slot does."""
    release = threading.Event()
    begun: list[str] = []
    late: list[bool] = []
    settings = WorkerSettings(slots=1, threads=4, reap_s=0.05, poll_s=0.1, drain_s=5)
    with make(tmp_path, worker=settings) as app:

        @app.handler("stuck", policy=ONCE, timeout=0.05)
        def stuck(context: Context, payload: Any) -> None:
            begun.append("stuck")
            release.wait(20)
            late.append(context.holds_lease())

        @app.handler("next")
        async def following(context: Context, payload: Any) -> None:
            begun.append("next")

        job = app.enqueue("stuck", key=1)

        async def main() -> None:
            async with working(app):
                await until(lambda: tries(app, job.delivery_id))
                assert tries(app, job.delivery_id) == [("unknown", "handler_timeout")]
                assert seen(app, job.delivery_id).disposition == "dead"
                app.enqueue("next", key=1)
                await asyncio.sleep(0.3)
                assert begun == ["stuck"]  # its thread still runs, so the only slot is taken
                release.set()
                await until(lambda: begun == ["stuck", "next"])

        asyncio.run(main())
        assert late == [False]
        assert_verified(app)


def test_a_sync_handlers_lease_is_kept_while_it_runs(tmp_path: Path) -> None:
    settings = WorkerSettings(slots=2, lease_s=0.3, reap_s=0.05)
    with make(tmp_path, worker=settings) as app:
        held: list[bool] = []

        @app.handler("job", policy=FAST, timeout=30)
        def job(context: Context, payload: Any) -> None:
            time.sleep(1.0)
            held.append(context.holds_lease())

        it = app.enqueue("job", key=1)
        drain(app)
        assert held == [True]
        assert tries(app, it.delivery_id) == [("delivered", "ok")]
        assert query(app, "SELECT fence FROM delivery_state") == [(1,)]


def test_a_sync_handlers_time_runs_from_when_a_thread_took_it(tmp_path: Path) -> None:
    with make(tmp_path, worker=WorkerSettings(slots=4, threads=1)) as app:

        @app.handler("job", policy=ONCE, timeout=0.4)
        def job(context: Context, payload: Any) -> None:
            time.sleep(0.25)

        jobs = [app.enqueue("job", key=n) for n in range(4)]
        drain(app)
        assert [tries(app, it.delivery_id) for it in jobs] == [[("delivered", "ok")]] * 4


def test_a_handler_may_enqueue_more_work(tmp_path: Path) -> None:
    with make(tmp_path) as app:

        @app.handler("sync")
        def sync(context: Context, payload: int) -> None:
            if payload:
                app.enqueue("async", payload - 1, key=payload)

        @app.handler("async")
        async def asynchronous(context: Context, payload: int) -> None:
            if payload:
                app.enqueue("sync", payload - 1, key=payload)
                await app.enqueue_async("sync", 0, key=("leaf", payload))

        app.enqueue("sync", 6, key="first")
        drain(app)
        assert query(app, "SELECT disposition, count(*) FROM delivery_state GROUP BY 1") == [(2, 10)]


# --- unknown --------------------------------------------------------------------------------------------


def test_unknown_retry_runs_again_under_the_same_id(tmp_path: Path) -> None:
    ids: list[str] = []

    async def job(context: Context, payload: Any) -> None:
        ids.append(context.delivery_id)
        if len(ids) == 1:
            raise Unknown

    assert outcome_of(tmp_path, job, FAST) == ("delivered", [("unknown", "handler_error"), ("delivered", "ok")])
    assert ids[0] == ids[1]


def test_unknown_hold_is_a_dead_letter_for_a_person(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        app.handler("job", policy=FAST, unknown="hold")(raiser("async", Unknown))
        app.enqueue("job", key=1)
        drain(app)
        (letter,) = dead(app)
        assert (letter.cause, letter.attempts, letter.ambiguous) == ("ambiguous", 1, True)


@pytest.mark.parametrize("how", ["async", "sync", "wrapped"])
@pytest.mark.parametrize(
    ("there", "ends", "after"),
    [
        (True, "delivered", [("delivered", "confirmed")]),
        (False, "delivered", [("delivered", "ok")]),
        (None, "dead", [("retryable", "confirm_failed")] * 2),
        (ValueError(), "dead", [("retryable", "confirm_failed")] * 2),
    ],
    ids=["there", "not there", "cannot tell", "raises"],
)
def test_unknown_confirm_asks_before_anything_runs_again(
    tmp_path: Path, how: str, there: Any, ends: str, after: list[tuple[str, str]]
) -> None:
    asked: list[tuple[str, Any, int]] = []
    ran: list[int] = []

    def sync(context: Context, payload: Any) -> Any:
        asked.append((context.delivery_id, payload, context.attempt))
        if isinstance(there, Exception):
            raise there
        return there

    async def asynchronous(context: Context, payload: Any) -> Any:
        return sync(context, payload)

    confirm: Any = {"sync": sync, "async": asynchronous, "wrapped": lambda c, p: asynchronous(c, p)}[how]
    with make(tmp_path) as app:

        @app.handler("job", policy=FAST, unknown="confirm", confirm=confirm)
        async def job(context: Context, payload: Any) -> None:
            ran.append(context.attempt)
            if context.attempt == 1:
                assert not context.ambiguous
                raise Unknown
            assert context.ambiguous

        it = app.enqueue("job", {"n": 1}, key=1)
        drain(app)
        assert tries(app, it.delivery_id) == [("unknown", "handler_error"), *after]
        assert asked == [(it.delivery_id, {"n": 1}, 2 + number) for number in range(len(after))]
        assert ran == ([1, 2] if there is False else [1])
        assert seen(app, it.delivery_id).disposition == ends
        if ends == "dead":
            assert [(letter.cause, letter.ambiguous) for letter in dead(app)] == [("ambiguous", True)]
        if there is True:
            assert attempts(app, it.delivery_id)[1].flags == ("confirmed",)
        assert_verified(app)


def test_confirm_without_a_function_is_refused(tmp_path: Path) -> None:
    with make(tmp_path, init=False) as app, pytest.raises(ConfigError) as caught:
        app.handler("job", unknown="confirm")
    assert caught.value.param == "confirm"
