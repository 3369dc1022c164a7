"""Words that are stored by value or number: what is on a ledger today must read the same tomorrow."""

from __future__ import annotations

import dataclasses
import re

import pytest

from redrive.domain import outcome
from redrive.domain.delivery import (
    Cause,
    Closed,
    Closing,
    DeadLetterState,
    Decided,
    Disposition,
    Enqueued,
    Hold,
    Lane,
    NewDelivery,
    NewEvent,
    Published,
)
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import Policy

KINDS = ("delivered", "no_op", "retryable", "permanent", "unknown", "interrupted", "deferred")
CATEGORIES = {
    *("ok", "nothing_to_do", "receiver_duplicate", "confirmed"),
    *("dns", "connect", "tls", "proxy", "timeout_unsent", "forbidden_address"),
    *("timeout_sent", "connection_lost", "bad_response"),
    *("http_gateway", "http_429", "http_5xx", "http_4xx", "http_3xx", "gone"),
    *("payload_invalid", "policy", "rejected", "handler_error", "handler_timeout", "retry_requested"),
    *("confirm_failed", "undecodable", "unknown_handler"),
    *("worker_lost", "shutdown", "destination_disabled", "own_fault", "age"),
}
CONTRACT_CATEGORIES = {
    *("dns", "connect", "tls", "timeout_unsent", "timeout_sent", "http_429", "http_5xx", "http_4xx"),
    *("http_3xx", "gone", "forbidden_address", "payload_invalid", "policy", "handler_error", "worker_lost"),
    *("undecodable", "unknown_handler"),
}


def test_outcome_kinds_are_the_contracts() -> None:
    assert tuple(kind.value for kind in OutcomeKind) == KINDS


def test_categories_are_closed_and_never_renamed() -> None:
    """A category may be added (here too); one that was ever stored may not go or change."""
    assert {category.value for category in Category} == CATEGORIES
    assert CONTRACT_CATEGORIES <= CATEGORIES
    assert all(re.fullmatch("[a-z][a-z0-9_]{1,23}", value) for value in CATEGORIES), "safe as a metric label"
    with pytest.raises(ValueError, match="not a valid Category"):
        Category("connection refused by 10.0.0.1")


def test_numbers_that_are_stored() -> None:
    assert {d.name: d.value for d in Disposition} == {
        "WAITING": 0,
        "LEASED": 1,
        "DELIVERED": 2,
        "NO_OP": 3,
        "DEAD": 4,
        "CANCELLED": 5,
    }
    assert {lane.name: lane.value for lane in Lane} == {"FRESH": 0, "RETRY": 1, "REDRIVE": 2}
    assert {hold.name: hold.value for hold in Hold} == {"NONE": 0, "DESTINATION_DISABLED": 1}
    assert {flag.name: flag.value for flag in Flag} == {
        "LATE": 1,
        "RECEIVER_DUPLICATE": 2,
        "RESPONSE_TRUNCATED": 4,
        "CONFIRMED": 8,
        "CLOSED_IN_HANDLER": 16,
        "RULED_OUT": 32,
    }


def test_words_that_are_stored() -> None:
    assert [cause.value for cause in Cause] == [
        "attempts_exhausted",
        "age_exhausted",
        "permanent",
        "worker_lost",
        "ambiguous",
    ]
    assert [state.value for state in DeadLetterState] == ["open", "redriven", "discarded"]
    assert [decided.value for decided in Decided] == ["created", "duplicate", "conflict"]
    assert [closed.value for closed in Closed] == [
        "applied",
        "already",
        "late_accepted",
        "evidence",
        "missing",
        "later",
    ]


def test_dispositions_show_and_end_as_the_contract_says() -> None:
    assert [d.label for d in Disposition] == ["waiting", "leased", "delivered", "no_op", "dead", "cancelled"]
    assert [d for d in Disposition if not d.terminal] == [Disposition.WAITING, Disposition.LEASED]


def test_flags_read_back_from_their_number_also_combined() -> None:
    flags = Flag.LATE | Flag.RECEIVER_DUPLICATE | Flag.CLOSED_IN_HANDLER
    assert Flag(int(flags)) == flags
    assert int(flags) == 19
    assert Flag.CONFIRMED not in flags


def test_an_outcome_says_only_what_it_was_told() -> None:
    plain = Outcome(OutcomeKind.RETRYABLE, Category.DNS)
    assert dataclasses.asdict(plain) == {
        "kind": "retryable",
        "category": "dns",
        "status": None,
        "retry_after_us": None,
        "flags": Flag.NONE,
        "excerpt": None,
        "disable_destination": False,
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.status = 500  # type: ignore[misc]


def test_the_named_outcomes() -> None:
    named = (outcome.DELIVERED, outcome.NO_OP, outcome.WORKER_LOST, outcome.INTERRUPTED)
    assert [(o.kind.value, o.category.value) for o in named] == [
        ("delivered", "ok"),
        ("no_op", "nothing_to_do"),
        ("unknown", "worker_lost"),
        ("interrupted", "shutdown"),
    ]


def test_o11_no_record_that_a_producer_makes_has_an_attempt_number() -> None:
    for record in (NewDelivery, NewEvent):
        assert not set(record._fields) & {"attempt", "attempts", "generation", "fence", "disposition", "deadline_at"}


def test_records_are_frozen_and_start_plain() -> None:
    new = NewDelivery(b"d" * 16, "invoice", "acme", "", Policy(), b"h" * 32, b"{}")
    assert (new.envelope_version, new.delay_us, new.available_at, new.hold) == (1, 0, None, Hold.NONE)
    for record, name in (
        (new, "delay_us"),
        (NewEvent(b"e" * 16, "e", "order.paid", "acme", b"{}", b"h" * 32, "application/json"), "payload"),
        (Enqueued(1, b"d" * 16, Decided.CREATED), "seq"),
        (Published(b"e" * 16, Decided.CREATED), "decided"),
    ):
        with pytest.raises(AttributeError):
            setattr(record, name, None)
    assert Published(b"e" * 16, Decided.CREATED).deliveries == ()
    assert Closing._field_defaults == {"min_delay_us": 0, "delivery_id": b""}
