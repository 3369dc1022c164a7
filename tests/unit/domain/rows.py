"""Shared by the tests of ``decide`` and ``settle``: some rows and outcomes, and every row and outcome."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from redrive.domain.decide import MAX_DEFERRALS
from redrive.domain.delivery import Disposition, Standing
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import DAY, HOUR, MINUTE, SECOND, Jitter, OnUnknown, Policy

NOW = 1_800_000_000 * SECOND
FAR = NOW + 30 * DAY
PATIENT = Policy(max_attempts=6, base=4 * SECOND, jitter=Jitter.NONE)
RETRYABLE = Outcome(OutcomeKind.RETRYABLE, Category.HTTP_5XX, status=503)
PERMANENT = Outcome(OutcomeKind.PERMANENT, Category.HTTP_4XX, status=400)
UNKNOWN = Outcome(OutcomeKind.UNKNOWN, Category.TIMEOUT_SENT)
OWN_FAULT = Outcome(OutcomeKind.DEFERRED, Category.OWN_FAULT)
DISABLED = Outcome(OutcomeKind.DEFERRED, Category.DESTINATION_DISABLED)


def leased(attempt: int = 1, max_attempts: int = 6, deadline_at: int = FAR, **more: Any) -> Standing:
    return Standing(Disposition.LEASED, attempt, max_attempts, deadline_at, **more)


# ---- any input --------------------------------------------------------------------------------

EXTREME = st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, -(10**30)])
NUMBERS = st.integers(-10, 30) | EXTREME
CLOCKS = st.integers(NOW - DAY, NOW + DAY) | EXTREME
DELAYS = st.none() | st.integers(0, 3 * DAY) | EXTREME
UNIT = st.floats(0, 1) | st.floats(allow_nan=True, allow_infinity=True)
POLICIES = st.builds(
    Policy,
    max_attempts=st.integers(1, 1000),
    base=st.integers(0, HOUR),
    factor=st.sampled_from([1.0, 1.5, 2.0, 1000.0]),
    cap=st.integers(MINUTE, DAY),
    floor=st.integers(0, MINUTE),
    jitter=st.sampled_from(Jitter),
    retry_after_cap=st.integers(0, 2 * DAY),
    on_unknown=st.sampled_from(OnUnknown),
)
STANDINGS = st.builds(
    Standing,
    disposition=st.sampled_from(Disposition),
    attempt=NUMBERS,
    max_attempts=NUMBERS,
    deadline_at=CLOCKS,
    own_faults=NUMBERS | st.just(MAX_DEFERRALS - 1),
    ambiguous=st.booleans(),
)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(OutcomeKind),
    category=st.sampled_from(Category),
    status=st.none() | st.integers(100, 599),
    retry_after_us=DELAYS,
    flags=st.sampled_from([Flag.NONE, Flag.RECEIVER_DUPLICATE, Flag.RESPONSE_TRUNCATED, Flag.CONFIRMED]),
    disable_destination=st.booleans(),
)
ENGINE_ONLY = (OutcomeKind.DEFERRED, OutcomeKind.INTERRUPTED)
SUCCESS = {OutcomeKind.DELIVERED: Disposition.DELIVERED, OutcomeKind.NO_OP: Disposition.NO_OP}
