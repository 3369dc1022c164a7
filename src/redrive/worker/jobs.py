"""Python jobs: a user's function as a handler, async or in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from redrive.domain.delivery import Closed, Lease
from redrive.domain.envelope import Decoders, Undecodable
from redrive.domain.identity import attempt_id, to_text
from redrive.domain.outcome import (
    CONFIRM_FAILED,
    CONFIRMED,
    DELIVERED,
    NO_OP,
    OWN_FAULT,
    Category,
    Flag,
    Outcome,
    OutcomeKind,
    ruled_out,
)
from redrive.domain.policy import OnUnknown, Policy
from redrive.domain.ports import LeaseGuard
from redrive.domain.signals import NoOp, Permanent, Retry, Unknown
from redrive.errors import ConfigError, Conflict, RedriveError
from redrive.worker.threads import Threads

_log = logging.getLogger("redrive.jobs")
_UNDECODABLE: Final = Outcome(OutcomeKind.PERMANENT, Category.UNDECODABLE)
_RAISED: Final = Outcome(OutcomeKind.RETRYABLE, Category.HANDLER_ERROR)
_TIMED_OUT: Final = Outcome(OutcomeKind.UNKNOWN, Category.HANDLER_TIMEOUT)
_UNKNOWN: Final = Outcome(OutcomeKind.UNKNOWN, Category.HANDLER_ERROR)
_LEASE_GONE: Final = object()

CloseIn = Callable[[Any, Lease, Outcome], Closed]
CloseInAsync = Callable[[Any, Lease, Outcome], Awaitable[Closed]]
WasClosed = Callable[[Lease], Awaitable[bool]]


class LeaseLost(Conflict):
    """The lease is no longer this worker's: nothing was recorded, and the effect must not be kept."""

    code = "lease_lost"


class Context:
    """What a handler is told about the attempt it is: enough to make its effect idempotent.

    ``delivery_id`` is the same on every attempt and replay. ``fence`` only ever grows for a delivery: an effect
    guarded by "only if my fence is the highest seen" cannot be overtaken by a worker that was thought dead.
    """

    __slots__ = ("_close_in", "_close_in_async", "_guard", "_lease", "_outcome")

    def __init__(self, lease: Lease, guard: LeaseGuard, close_in: CloseIn, close_in_async: CloseInAsync) -> None:
        self._lease = lease
        self._guard = guard
        self._close_in = close_in
        self._close_in_async = close_in_async
        self._outcome: Outcome | None = None

    @property
    def delivery_id(self) -> str:
        """``dlv_...``: what the work is. Give it to whoever must recognise a repeat."""
        return to_text("dlv", self._lease.delivery_id)

    @property
    def attempt_id(self) -> str:
        """``att_...``: unique for each time this handler is called."""
        return to_text("att", attempt_id(self._lease.delivery_id, self._lease.fence))

    @property
    def handler(self) -> str:
        """The handler's name."""
        return self._lease.handler

    @property
    def tenant(self) -> str:
        """Who the work belongs to."""
        return self._lease.tenant

    @property
    def scope(self) -> str | None:
        """The finer owner inside the tenant, if one was given."""
        return self._lease.scope

    @property
    def destination(self) -> str:
        """What is protected from us; empty if none was given."""
        return self._lease.destination

    @property
    def generation(self) -> int:
        """0 is the original; each redrive opens the next."""
        return self._lease.generation

    @property
    def attempt(self) -> int:
        """1 to :attr:`max_attempts` within the generation."""
        return self._lease.attempt

    @property
    def max_attempts(self) -> int:
        """The generation's attempt budget."""
        return self._lease.max_attempts

    @property
    def fence(self) -> int:
        """Grows with every reservation of this delivery, over all generations."""
        return self._lease.fence

    @property
    def ambiguous(self) -> bool:
        """Whether an earlier attempt may have taken effect."""
        return bool(self._lease.ambiguous)

    def holds_lease(self) -> bool:
        """Whether the lease is certainly still held. Ask before an effect that cannot be taken back."""
        return self._guard.holds()

    def close_in(self, connection: Any, *, no_op: bool = False) -> None:
        """Record success inside the caller's own transaction on the ledger's database.

        Effect and outcome then commit together or not at all. Takes a ``sqlite3.Connection`` or a SQLAlchemy
        ``Connection`` or ``Session`` with an open transaction. Raises :class:`LeaseLost` when the lease is not ours
        any more: let it propagate, so that the effect is rolled back.
        """
        self._closed(self._close_in(connection, self._lease, self._success(no_op)), no_op)

    async def close_in_async(self, connection: Any, *, no_op: bool = False) -> None:
        """As :meth:`close_in`, on a SQLAlchemy ``AsyncConnection`` or ``AsyncSession``."""
        self._closed(await self._close_in_async(connection, self._lease, self._success(no_op)), no_op)

    @staticmethod
    def _success(no_op: bool) -> Outcome:
        if no_op:
            return Outcome(OutcomeKind.NO_OP, Category.NOTHING_TO_DO, flags=Flag.CLOSED_IN_HANDLER)
        return Outcome(OutcomeKind.DELIVERED, Category.OK, flags=Flag.CLOSED_IN_HANDLER)

    def _closed(self, closed: Closed, no_op: bool) -> None:
        if closed is not Closed.APPLIED:
            raise LeaseLost(
                f"delivery {self.delivery_id} is no longer leased to this attempt",
                hint="roll the effect back",
            )
        self._outcome = self._success(no_op)


Function = Callable[[Context, Any], Any]
ConfirmFunction = Callable[[Context, Any], Any]
"""True: the effect is there. False: it is not, run again. None: cannot tell, try later."""


class JobHandler:
    """One user function, its policy and its decoders. Sync functions run in threads.

    ``outcomes`` maps exception types to what they mean: a :class:`Retry`, :class:`Permanent`, :class:`NoOp` or
    :class:`Unknown` instance; the most derived match wins, and what matches nothing is retryable.
    """

    def __init__(
        self,
        name: str,
        function: Function,
        *,
        policy: Policy,
        timeout_s: float | None,
        decoders: Decoders,
        write_version: int,
        outcomes: dict[type[BaseException], Retry | Permanent | NoOp | Unknown],
        confirm: ConfirmFunction | None,
        threads: Callable[[], Threads],
        close_in: CloseIn,
        close_in_async: CloseInAsync,
        was_closed: WasClosed,
    ) -> None:
        self.name = name
        self.function = function
        self.policy = policy
        self.timeout_s = timeout_s
        self.decoders = decoders
        self.write_version = write_version
        self.confirm = confirm
        self._outcomes = outcomes
        self._threads = threads
        self._close_in = close_in
        self._close_in_async = close_in_async
        self._was_closed = was_closed
        self._is_async = is_async(function)

    @property
    def envelope_versions(self) -> frozenset[int]:
        return self.decoders.versions

    async def execute(self, lease: Lease, guard: LeaseGuard) -> Outcome | None:
        try:
            payload = self.decoders.decode(
                lease.envelope_version, lease.content_type, lease.payload, lease.payload_hash
            )
        except Undecodable as exc:
            _log.error("%s: %s", to_text("dlv", lease.delivery_id), exc)
            return _UNDECODABLE
        context = Context(lease, guard, self._close_in, self._close_in_async)
        if guard.on_unknown is not OnUnknown.CONFIRM:
            return await self._call(context, payload, guard)
        if self.confirm is None:
            _log.error("handler %s: its work was promised a confirm function, and there is none here", self.name)
            return OWN_FAULT
        verdict = await self._ask(self.confirm, context, payload, guard)
        if verdict is not None:
            return verdict
        outcome = await self._call(context, payload, guard)
        return None if outcome is None else ruled_out(outcome)

    async def _call(self, context: Context, payload: Any, guard: LeaseGuard) -> Outcome | None:
        if not guard.holds():
            return None
        try:
            if not self._is_async:
                return await self._in_thread(context, payload, guard)
            guard.start()
            await self._within(self.timeout_s, self.function(context, payload))
        except _TimedOut:
            return await self._raised(context, TimeoutError(), timed_out=True)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as exc:
            return await self._raised(context, exc, timed_out=False)
        return await self._returned(context)

    @staticmethod
    async def _within(seconds: float | None, work: Awaitable[Any]) -> None:
        """Await a handler's work; :class:`_TimedOut` when its time, and not a time limit of its own, ran out."""
        if seconds is None:
            await work
            return
        try:
            async with asyncio.timeout(seconds) as limit:
                await work
        except TimeoutError:
            if limit.expired():
                raise _TimedOut from None
            raise

    async def _in_thread(self, context: Context, payload: Any, guard: LeaseGuard) -> Outcome | None:
        begun: list[float] = []

        def call() -> tuple[Any, BaseException | None]:
            try:
                # It may have waited long for a thread, and the process may have been stopped meanwhile.
                if not guard.holds():
                    return _LEASE_GONE, None
                guard.start()
                begun.append(time.monotonic())
                return self.function(context, payload), None
            except BaseException as exc:
                return None, exc

        job = self._threads().submit(functools.partial(contextvars.copy_context().run, call))
        future = asyncio.wrap_future(job)
        left = self.timeout_s
        try:
            while not (await asyncio.wait({future}, timeout=left))[0]:
                assert self.timeout_s is not None
                # Its time runs from when a thread took it.
                left = begun[0] + self.timeout_s - time.monotonic() if begun else self.timeout_s
                if left <= 0:
                    # A thread cannot be stopped. The outcome is recorded now, whatever becomes of the thread; the slot
                    # stays taken until it is back, so that lost threads never pile up.
                    guard.occupy(future)
                    return await self._raised(context, TimeoutError(), timed_out=True)
        except asyncio.CancelledError:
            job.cancel()
            raise
        value, exc = future.result()
        if value is _LEASE_GONE:
            return None
        if exc is None and inspect.isawaitable(value):
            # A plain function around an async one.
            await self._within(
                None if self.timeout_s is None else begun[0] + self.timeout_s - time.monotonic(),
                value,
            )
        return await self._returned(context) if exc is None else await self._raised(context, exc, timed_out=False)

    async def _returned(self, context: Context) -> Outcome | None:
        closed = context._outcome
        if closed is None:
            return DELIVERED
        if await self._was_closed(context._lease):
            return None
        _log.error("handler %s called close_in, and its transaction was never committed", self.name)
        return _RAISED

    async def _raised(self, context: Context, exc: BaseException, *, timed_out: bool) -> Outcome | None:
        if context._outcome is not None and await self._was_closed(context._lease):
            _log.error("handler %s raised after its outcome was committed", self.name, exc_info=exc)
            return None
        if timed_out:
            return _TIMED_OUT
        signal = exc
        if not isinstance(exc, Retry | Permanent | NoOp | Unknown):
            for kind in type(exc).__mro__:
                if kind in self._outcomes:
                    signal = self._outcomes[kind]
                    break
            else:
                _log.warning("handler %s raised", self.name, exc_info=exc)
        return outcome_of(signal)

    async def _ask(self, confirm: ConfirmFunction, context: Context, payload: Any, guard: LeaseGuard) -> Outcome | None:
        """Ask whether an earlier attempt's effect is there; None means that it is not, and the work may run."""
        guard.start()
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                there = (
                    confirm(context, payload)
                    if is_async(confirm)
                    else await self._asked(confirm, context, payload, guard)
                )
                if inspect.isawaitable(there):
                    there = await there
        except Exception as exc:
            if limit.expired():
                _log.error("confirm function of handler %s ran over %g s", self.name, self.timeout_s)
            else:
                _log.error("confirm function of handler %s raised", self.name, exc_info=exc)
            return CONFIRM_FAILED
        if there is None:
            return CONFIRM_FAILED
        return CONFIRMED if there else None

    async def _asked(self, confirm: ConfirmFunction, context: Context, payload: Any, guard: LeaseGuard) -> Any:
        """What a confirm function that is not async returns, from a thread."""

        def call() -> tuple[Any, BaseException | None]:
            try:
                return confirm(context, payload), None
            except BaseException as exc:
                return None, exc

        job = self._threads().submit(call)
        future = asyncio.wrap_future(job)
        try:
            there, exc = await asyncio.shield(future)
        except asyncio.CancelledError:
            if not job.cancel():
                guard.occupy(future)
            raise
        if exc is not None:
            raise exc
        return there


class _TimedOut(Exception):
    """The handler's time limit ran out."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; objects with an async ``__call__`` count."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def _called(function: object) -> tuple[object, object]:
    """The function, and what an object's call runs."""
    return function, getattr(type(function), "__call__", None)  # noqa: B004 - looked at, not asked for


def check_function(function: object) -> None:
    """Raise :class:`ConfigError` for what would count as delivered without ever having run."""
    generates = any(inspect.isgeneratorfunction(x) or inspect.isasyncgenfunction(x) for x in _called(function))
    if generates or not callable(function):
        raise ConfigError("a handler is a function (context, payload), and no generator", param="handler")


def check_outcomes(outcomes: object) -> dict[type[BaseException], Retry | Permanent | NoOp | Unknown]:
    """A handler's table of exceptions. Raises :class:`ConfigError`."""
    found: dict[type[BaseException], Retry | Permanent | NoOp | Unknown] = {}
    for kind, signal in dict(outcomes).items() if isinstance(outcomes, Mapping) else ():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigError("outcomes are keyed by exception types", param="outcomes")
        if not isinstance(signal, Retry | Permanent | NoOp | Unknown):
            raise ConfigError(
                "an outcome is an instance: Retry(), Permanent(...), NoOp() or Unknown()", param="outcomes"
            )
        found[kind] = signal
    return found


def outcome_of(signal: BaseException) -> Outcome:
    """The one table from what a handler raised to an outcome."""
    if isinstance(signal, Retry):
        return Outcome(OutcomeKind.RETRYABLE, Category.RETRY_REQUESTED, retry_after_us=signal.after_us)
    if isinstance(signal, Permanent):
        return Outcome(OutcomeKind.PERMANENT, signal.category)
    if isinstance(signal, NoOp):
        return NO_OP
    if isinstance(signal, Unknown):
        return _UNKNOWN
    if isinstance(signal, RedriveError) and signal.code == "payload_invalid":
        return Outcome(OutcomeKind.PERMANENT, Category.PAYLOAD_INVALID)
    return _RAISED


def with_unknown(policy: Policy, unknown: OnUnknown | str) -> Policy:
    """``policy``, with what follows an unknown outcome as the handler was told."""
    try:
        return replace(policy, on_unknown=OnUnknown(unknown))
    except ValueError:
        raise ConfigError("unknown is retry, hold or confirm", param="unknown") from None
