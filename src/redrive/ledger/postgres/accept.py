"""Orders as the parameters of one statement, and its rows as their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, TypeVar

from redrive.domain import identity
from redrive.domain.delivery import Decided, Enqueued, NewDelivery, NewEvent, Published
from redrive.domain.policy import Policy
from redrive.ledger.base import Accept, Order, Publish
from redrive.ledger.postgres.statements import array
from redrive.ledger.statements import sql
from redrive.ledger.tx import Params, Tx

R = TypeVar("R")
AGAIN: Final = 1
"""The call may be a repetition of one whose answer was lost: what it finds of its own making is ``created``."""
NOTIFY: Final = 2
BRIEF: Final = 4
"""Another transaction is waited for for 50 ms at most; then nothing is accepted, and the error says ``55P03``."""
PATIENT: Final = 8
"""The same, for 1 s."""
_route = lru_cache(maxsize=4096)(identity.route_of)
_flow = lru_cache(maxsize=16384)(identity.flow_of)


@lru_cache(maxsize=1024)
def _policy_row(policy: Policy) -> tuple[int, str]:
    return policy.version, policy.spec()


def size(order: Order[Any]) -> int:
    """How many items an order holds."""
    return len(order.items) if isinstance(order, Accept) else len(order.events)  # type: ignore[attr-defined]


def keys_of(order: Order[Any]) -> Iterator[bytes]:
    """What an order's items are: two orders that share one are not put into one statement."""
    if isinstance(order, Accept):
        return (item.delivery_id for item in order.items)
    assert isinstance(order, Publish)
    return (event.event_id for event in order.events)


def policies_of(order: Order[Any]) -> dict[int, str]:
    """The policies that an order's deliveries are granted, by version."""
    return dict({_policy_row(item.policy) for item in order.items}) if isinstance(order, Accept) else {}


def take_in(tx: Tx, environment: str, order: Order[R], mode: int = 0) -> R:
    """Accept one order in an open transaction: one statement.

    Its policies must be stored already: in a caller's transaction they would make others wait for its end, and its
    snapshot may be too old to see that others have stored them.
    """
    return take_all(tx, environment, [order], mode, {})[0]


def again(since: float) -> int:
    """The mode of a call whose answer was lost, and that was first sent so many seconds ago."""
    return AGAIN | int(since * 1000) << 4


def take_all(tx: Tx, environment: str, orders: Sequence[Order[R]], mode: int, policies: dict[int, str]) -> list[R]:
    """Accept orders of one kind in one statement: each all or nothing, whatever becomes of the others."""
    if isinstance(orders[0], Accept):
        return _accept(tx, environment, orders, mode, policies)  # type: ignore[arg-type, return-value]
    return _publish(tx, environment, orders, mode)  # type: ignore[arg-type, return-value]


def accept_each(tx: Tx, environment: str, items: Sequence[NewDelivery], path: str, producer: str) -> list[Enqueued]:
    """Accept deliveries, each by itself: a conflict is one item's result, and keeps no other from being accepted."""
    policies = dict(_policy_row(item.policy) for item in items)
    params = _accept_params(environment, items, range(len(items)), path, producer, 0, policies)
    rows = tx.rows(sql("accept"), params) if items else []
    return [
        Enqueued(seq, item.delivery_id, Decided(decided)) for item, (_, seq, decided) in zip(items, rows, strict=True)
    ]


def _accept(
    tx: Tx, environment: str, orders: Sequence[Accept], mode: int, policies: dict[int, str]
) -> list[list[Enqueued]]:
    items = [item for order in orders for item in order.items]
    if not items:
        return [[] for _ in orders]
    calls = [number for number, order in enumerate(orders, 1) for _ in order.items]
    first = orders[0]
    params = _accept_params(environment, items, calls, first.path, first.producer, mode, policies)
    rows = iter(tx.rows(sql("accept"), params))
    return [
        [
            Enqueued(seq, item.delivery_id, Decided(decided))
            for item, (_, seq, decided) in zip(order.items, rows, strict=False)
        ]
        for order in orders
    ]


def _accept_params(
    environment: str,
    items: Sequence[NewDelivery],
    calls: Iterable[int],
    path: str,
    producer: str,
    mode: int,
    policies: dict[int, str],
) -> Params:
    kinds: dict[tuple[Any, ...], int] = {}
    kind = [
        kinds.setdefault(
            (
                item.handler,
                item.tenant,
                item.scope,
                item.destination,
                item.content_type,
                item.envelope_version,
                item.policy,
                item.priority,
                item.hold,
                item.delay_us,
                item.available_at,
            ),
            len(kinds) + 1,
        )
        for item in items
    ]
    payloads = [item.payload or b"" for item in items]
    return (
        environment,
        json.dumps([_kind(*fields) for fields in kinds]),
        array(kind),
        array(calls),
        json.dumps([item.key_text for item in items]),
        b"".join([item.delivery_id for item in items]),
        b"".join([item.payload_hash for item in items]),
        b"".join(payloads),
        array(accumulate(map(len, payloads))),
        json.dumps(policies),
        path,
        producer,
        mode,
    )


def _kind(
    handler: str,
    tenant: str,
    scope: str | None,
    destination: str,
    content_type: str,
    envelope_version: int,
    policy: Policy,
    priority: int,
    hold: int,
    delay: int,
    due: int | None,
) -> dict[str, Any]:
    return {
        "handler": handler,
        "tenant": tenant,
        "scope": scope,
        "destination": destination,
        "content_type": content_type,
        "envelope_version": envelope_version,
        "route": _route(handler, envelope_version),
        "flow": _flow(handler, envelope_version, destination, tenant),
        "priority": priority,
        "hold": int(hold),
        "policy_version": _policy_row(policy)[0],
        "max_attempts": policy.max_attempts,
        "max_age": policy.max_age,
        "due": due,
        "delay": delay,
    }


def _publish(tx: Tx, environment: str, orders: Sequence[Publish], mode: int) -> list[list[Published]]:
    events = [event for order in orders for event in order.events]
    if not events:
        return [[] for _ in orders]
    first = orders[0]
    params = (
        environment,
        json.dumps([_head(event) for event in events]),
        b"".join([event.event_id for event in events]),
        b"".join([event.payload_hash for event in events]),
        b"".join([event.payload for event in events]),
        array(accumulate(len(event.payload) for event in events)),
        array(number for number, order in enumerate(orders, 1) for _ in order.events),
        first.path,
        first.producer,
        mode,
    )
    rows = iter(tx.rows(sql("publish"), params))
    return [[_published(event, *row) for event, row in zip(order.events, rows, strict=False)] for order in orders]


def _head(event: NewEvent) -> dict[str, Any]:
    return {
        "key": event.event_key,
        "type": event.event_type,
        "tenant": event.tenant,
        "scope": event.scope,
        "content_type": event.content_type,
        "envelope_version": event.envelope_version,
        "occurred_at": event.occurred_at,
    }


def _published(event: NewEvent, _: int, seq: int, said: str, seqs: str, ids: str) -> Published:
    decided = Decided(said)
    raw = bytes.fromhex(ids)
    numbers = map(int, seqs.split(",")) if seqs else ()
    deliveries = tuple(Enqueued(number, raw[16 * n : 16 * n + 16], decided) for n, number in enumerate(numbers))
    return Published(event.event_id, decided, deliveries)
