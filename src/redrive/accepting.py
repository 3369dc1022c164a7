"""What callers hand in and get back when they enqueue or publish, and the checks before the ledger is touched."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar

from redrive.domain import identity
from redrive.domain.delivery import Decided, Enqueued, NewDelivery, NewEvent, Published
from redrive.domain.envelope import CURRENT, payload_hash
from redrive.domain.identity import UNIQUE, Key, Unique
from redrive.domain.policy import OnUnknown, Policy
from redrive.domain.values import MAX_DURATION_US, canonical_json, check_label, check_slug, duration_us, utc_us
from redrive.errors import Conflict, InvalidInput, PayloadTooLarge, RedriveError, UnknownHandler
from redrive.worker.jobs import JobHandler

WEBHOOK: Final = "webhook"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """What became of an enqueue. ``created`` is False when the same work was already there."""

    delivery_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a publish: the event, and the deliveries frozen at its first publish."""

    event_id: str
    created: bool
    deliveries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One piece of work to enqueue.

    ``key`` is the work's natural identity within (handler, tenant), or ``UNIQUE``. ``delay`` is seconds, a
    timedelta or text (``"15m"``), ``at`` an aware datetime; one of the two, and at most ten years ahead.
    ``priority`` is 0 (first) to 3, among the work of one handler: workers take turns between handlers, so that none
    starves. ``policy`` is this job's own, instead of its handler's; it must be given for a handler that this
    application does not have, whose policy is not known here.
    """

    handler: str
    payload: Any = None
    key: Key | Unique = None
    tenant: str = "default"
    scope: str | None = None
    destination: str = ""
    delay: float | timedelta | str | None = None
    at: datetime | None = None
    priority: int = 2
    policy: Policy | None = None


class Rejections:
    """Refused calls, counted by their error's code until a later write takes the counts to the ledger.

    Safe from any thread.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def noting(self, check: Callable[[], T]) -> T:
        """What ``check`` returns; an error that it raises is counted."""
        try:
            return check()
        except RedriveError as exc:
            self._add({exc.code: 1})
            raise

    @contextlib.contextmanager
    def flushed(self) -> Iterator[Mapping[str, int]]:
        """The counts, for a write that takes them to the ledger; they are kept for the next one if the block raises.

        Not for a caller's own transaction: that may be rolled back later, and the counts with it.
        """
        with self._lock:
            counts, self._counts = self._counts, {}
        try:
            yield counts
        except Exception:  # not a cancelled wait: the write goes on without it
            self._add(counts)
            raise

    def _add(self, counts: dict[str, int]) -> None:
        with self._lock:
            for code, count in counts.items():
                self._counts[code] = self._counts.get(code, 0) + count


def prepare(
    spec: JobSpec, known: JobHandler | None, allow_unknown: bool, max_payload_bytes: int, clock: Callable[[], int]
) -> NewDelivery:
    """Check one job completely. ``known`` is this application's handler of that name, if it has one."""
    name = spec.handler
    names = (name, spec.tenant, spec.scope, spec.destination)
    (_check_known_names if all(type(text) is str or text is None for text in names) else _check_names)(*names)
    if name == WEBHOOK:
        raise InvalidInput("webhooks are published, not enqueued", param="handler", hint="use publish()")
    if known is None and not allow_unknown:
        raise UnknownHandler(
            f"this application has no handler {name!r}",
            param="handler",
            hint="register it, or pass allow_unknown=True and a policy if another application executes it",
        )
    policy = _policy(spec, known)
    if isinstance(spec.priority, bool) or spec.priority not in (0, 1, 2, 3):
        raise InvalidInput("priority must be 0, 1, 2 or 3", param="priority")
    if spec.delay is not None and spec.at is not None:
        raise InvalidInput("give delay or at, not both", param="delay")
    body = canonical_json(spec.payload)
    if len(body) > max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload is {len(body)} bytes, the limit is {max_payload_bytes}",
            param="payload",
            hint="raise max_payload_bytes, or enqueue a reference to the data",
        )
    unique = secrets.token_bytes(16) if spec.key is UNIQUE else None
    key: Key = unique if spec.key is UNIQUE else spec.key
    return NewDelivery(
        identity.delivery_id(name, spec.tenant, key),
        name,
        spec.tenant,
        spec.destination,
        policy,
        payload_hash("application/json", body),
        body,
        scope=spec.scope,
        envelope_version=CURRENT if known is None else known.write_version,
        priority=spec.priority,
        delay_us=0 if spec.delay is None else duration_us(spec.delay, "delay"),
        available_at=None if spec.at is None else _at(spec.at, clock),
        key_text=identity.key_text(key),
    )


def _check_names(handler: object, tenant: object, scope: object, destination: object) -> None:
    check_slug(handler, "handler")
    check_label(tenant, "tenant")
    if scope is not None:
        check_label(scope, "scope")
    if destination != "":
        check_label(destination, "destination")


_check_known_names = lru_cache(maxsize=16_384)(_check_names)
"""The same few names come with every job; only text is remembered, and a refusal never is."""


def _policy(spec: JobSpec, known: JobHandler | None) -> Policy:
    policy = spec.policy
    if policy is None:
        if known is None:
            # The handler's own is known to its application only: a default would replace it without a word.
            raise InvalidInput(
                f"this application does not know the policy of handler {spec.handler!r}",
                param="policy",
                hint="pass the policy that this job is to have, for example policy=Policy(); Policy() is the default",
            )
        return known.policy
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a Policy, not {type(policy).__name__}", param="policy")
    if known is not None and known.confirm is None and policy.on_unknown is OnUnknown.CONFIRM:
        raise InvalidInput(
            f"unknown = confirm needs a confirm function, and handler {spec.handler!r} has none", param="policy"
        )
    return policy


def _at(at: datetime, clock: Callable[[], int]) -> int:
    due = utc_us(at, "at")
    if due - clock() > MAX_DURATION_US:
        raise InvalidInput("at is longer than ten years from now", param="at")
    return due


def jobs(specs: Sequence[JobSpec], results: list[Enqueued]) -> list[Job]:
    """The results for the caller; raises :class:`Conflict` when nothing was accepted because of one."""
    conflicts = [spec for spec, result in zip(specs, results, strict=True) if result.decided is Decided.CONFLICT]
    if conflicts:
        first = conflicts[0]
        raise Conflict(
            f"{len(conflicts)} of {len(specs)} keys were enqueued before with another payload, for example "
            f"{identity.key_text(first.key)!r} for handler {first.handler!r}",  # type: ignore[arg-type]
            param="key",
            hint="nothing was enqueued; corrected work is new work: give it a new key",
        )
    return [Job(identity.to_text("dlv", result.delivery_id), result.decided is Decided.CREATED) for result in results]


def publications(results: list[Published], events: Sequence[NewEvent]) -> list[Publication]:
    """The results for the caller; raises :class:`Conflict` when nothing was accepted because of one."""
    for result, event in zip(results, events, strict=True):
        if result.decided is Decided.CONFLICT:
            raise Conflict(
                f"event {event.event_key!r} was published before with another type or payload",
                param="event_id",
                hint="nothing was published; a corrected payload is a new event: give it a new event ID",
            )
    return [
        Publication(
            identity.to_text("evt", result.event_id),
            result.decided is Decided.CREATED,
            tuple(identity.to_text("dlv", delivery.delivery_id) for delivery in result.deliveries),
        )
        for result in results
    ]
