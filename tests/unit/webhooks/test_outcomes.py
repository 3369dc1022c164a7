"""The outcome table: complete, total, and honest about what may have happened."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.retry_after import MAX_US
from redrive.errors import InvalidInput
from redrive.webhooks.observation import Failure, Fault, Phase, Response
from redrive.webhooks.outcomes import MAX_EXCERPT, OutcomeTable, excerpt

NOW_US = 1_787_277_600_000_000  # 2026-08-21T02:00:00Z
TABLE = OutcomeTable()
S = 1_000_000
D, R, P, U = OutcomeKind.DELIVERED, OutcomeKind.RETRYABLE, OutcomeKind.PERMANENT, OutcomeKind.UNKNOWN


def seen(status: int, *headers: tuple[bytes, bytes], body: bytes = b"", truncated: bool = False) -> Response:
    return Response(status, headers, body, truncated)


def want(status: int) -> tuple[OutcomeKind, Category]:
    """The facts page's table, written out again."""
    match status:
        case _ if 200 <= status <= 299:
            return D, Category.OK
        case _ if 300 <= status <= 399:
            return P, Category.HTTP_3XX
        case 429:
            return R, Category.HTTP_429
        case 408 | 409 | 423 | 425:
            return R, Category.HTTP_4XX
        case 410:
            return P, Category.GONE
        case _ if 400 <= status <= 499:
            return P, Category.HTTP_4XX
        case 502 | 504:
            return U, Category.HTTP_GATEWAY
        case _ if 500 <= status <= 599:
            return R, Category.HTTP_5XX
    return U, Category.BAD_RESPONSE


@pytest.mark.parametrize("status", [*range(100, 600), -1, 0, 1, 99, 600, 699, 999, 10**9])
def test_every_status(status: int) -> None:
    got = TABLE.classify(seen(status), NOW_US)
    kind, category = want(status)
    assert got == Outcome(kind, category, status=status, disable_destination=status == 410)


@pytest.mark.parametrize(("phase", "fault", "sent"), list(product(Phase, Fault, (False, True))))
def test_every_failure(phase: Phase, fault: Fault, sent: bool) -> None:
    got = TABLE.classify(Failure(phase, fault, sent, "ECONNRESET"), NOW_US)
    assert got.status is None
    assert got.retry_after_us is None
    assert got.flags is Flag.NONE
    if sent:
        assert got.kind is U
        assert got.category in (Category.TIMEOUT_SENT, Category.CONNECTION_LOST, Category.BAD_RESPONSE)
        assert (got.category is Category.TIMEOUT_SENT) == (fault is Fault.TIMEOUT)
        assert (got.category is Category.BAD_RESPONSE) == (fault is Fault.MALFORMED)
        return
    if fault is Fault.FORBIDDEN or phase is Phase.GUARD:
        assert (got.kind, got.category) == (P, Category.FORBIDDEN_ADDRESS)
    elif fault is Fault.OURS:
        assert (got.kind, got.category) == (OutcomeKind.DEFERRED, Category.OWN_FAULT)
    elif fault is Fault.CERTIFICATE:
        assert (got.kind, got.category) == (P, Category.TLS)
    elif fault is Fault.TIMEOUT:
        assert (got.kind, got.category) == (R, Category.TIMEOUT_UNSENT)
    else:
        names = {Phase.DNS: "dns", Phase.PROXY: "proxy", Phase.TLS: "tls"}
        assert (got.kind, got.category.value) == (R, names.get(phase, "connect"))


@pytest.mark.parametrize(
    ("phase", "fault"),
    [
        (Phase.DNS, Fault.REFUSED),  # NXDOMAIN, SERVFAIL
        (Phase.DNS, Fault.TIMEOUT),
        (Phase.CONNECT, Fault.REFUSED),
        (Phase.CONNECT, Fault.LOST),
        (Phase.CONNECT, Fault.TIMEOUT),
        (Phase.TLS, Fault.REFUSED),
        (Phase.TLS, Fault.LOST),
        (Phase.TLS, Fault.TIMEOUT),
        (Phase.PROXY, Fault.REFUSED),
    ],
)
def test_unsent_failures_are_retried_within_the_budget(phase: Phase, fault: Fault) -> None:
    assert TABLE.classify(Failure(phase, fault, False), NOW_US).kind is R


def test_a_certificate_may_be_retried_by_choice() -> None:
    table = OutcomeTable.build(certificate="retryable")
    got = table.classify(Failure(Phase.TLS, Fault.CERTIFICATE, False), NOW_US)
    assert (got.kind, got.category) == (R, Category.TLS)
    for other in ("unknown", "delivered", "no", ""):
        with pytest.raises(InvalidInput):
            OutcomeTable.build(certificate=other)


@pytest.mark.parametrize("status", range(200, 600))
def test_retry_after_is_kept_for_every_retryable_and_unknown_answer(status: int) -> None:
    got = TABLE.classify(seen(status, (b"retry-after", b"30")), NOW_US)
    kind, _ = want(status)
    assert got.retry_after_us == (30 * S if kind in (R, U) else None)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ([(b"retry-after", b"0")], 0),
        ([(b"retry-after", b"9999999999")], MAX_US),
        ([(b"retry-after", b"Fri, 21 Aug 2026 02:00:10 GMT")], 10 * S),
        ([(b"retry-after", b"Fri, 21 Aug 2026 01:00:10 GMT")], 0),
        ([(b"retry-after", b"-3")], None),
        ([(b"retry-after", b"")], None),
        ([(b"retry-after", "١٢٠".encode())], None),
        ([(b"retry-after", b"30"), (b"retry-after", b"60")], None),
        ([(b"retry-after", b"30"), (b"retry-after", b"30")], None),
        ([(b"x-retry-after", b"30")], None),
        ([], None),
    ],
)
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_values(status: int, headers: list[tuple[bytes, bytes]], wait: int | None) -> None:
    assert TABLE.classify(seen(status, *headers), NOW_US).retry_after_us == wait


@pytest.mark.parametrize("status", [200, 204, 404, 503, 504])
def test_a_truncated_body_is_flagged_and_never_flips_the_outcome(status: int) -> None:
    whole, cut = (TABLE.classify(seen(status, truncated=t), NOW_US) for t in (False, True))
    assert (cut.kind, cut.category, cut.status) == (whole.kind, whole.category, whole.status)
    assert cut.flags == Flag.RESPONSE_TRUNCATED
    assert whole.flags == Flag.NONE


@pytest.mark.parametrize("value", [b"true", b"TRUE", b" true "])
def test_duplicate_header(value: bytes) -> None:
    got = TABLE.classify(seen(200, (b"date", b"x"), (b"webhook-duplicate", value)), NOW_US)
    assert got == Outcome(D, Category.RECEIVER_DUPLICATE, status=200, flags=Flag.RECEIVER_DUPLICATE)
    got = TABLE.classify(seen(503, (b"webhook-duplicate", value)), NOW_US)
    assert (got.kind, got.category, got.flags) == (R, Category.HTTP_5XX, Flag.RECEIVER_DUPLICATE)


@pytest.mark.parametrize("value", [b"false", b"", b"1", b"yes", b"truely"])
def test_no_duplicate_header(value: bytes) -> None:
    assert TABLE.classify(seen(200, (b"webhook-duplicate", value)), NOW_US).flags == Flag.NONE


def test_duplicates_by_a_header_and_a_status_of_the_destination() -> None:
    table = OutcomeTable.build(duplicate_status=409, duplicate_header="X-Seen")
    for answer in (seen(409), seen(201, (b"x-seen", b"true"))):
        got = table.classify(answer, NOW_US)
        assert (got.kind, got.category, got.flags) == (
            D,
            Category.RECEIVER_DUPLICATE,
            Flag.RECEIVER_DUPLICATE,
        )
    assert table.classify(seen(200, (b"webhook-duplicate", b"true")), NOW_US).flags == Flag.NONE
    cut = table.classify(seen(409, truncated=True), NOW_US)
    assert cut.flags == Flag.RECEIVER_DUPLICATE | Flag.RESPONSE_TRUNCATED
    assert cut.category is Category.RECEIVER_DUPLICATE


def test_acknowledging_with_other_statuses() -> None:
    table = OutcomeTable.build(acknowledge="202, 304,400-401")
    for status in (202, 304, 400, 401):
        assert table.classify(seen(status), NOW_US).kind is D
    # A success that this destination does not acknowledge with proves nothing, either way.
    assert table.classify(seen(200), NOW_US) == Outcome(U, Category.BAD_RESPONSE, status=200)
    assert table.classify(seen(402), NOW_US).kind is P
    assert OutcomeTable.build(acknowledge=[200, "4xx"]).classify(seen(410), NOW_US) == Outcome(
        D, Category.OK, status=410
    )


def test_overrides_win() -> None:
    table = OutcomeTable.build(
        overrides={
            "4xx": "retryable",
            "400-401": "permanent",
            404: "unknown",
            202: "retryable",
            500: "delivered",
            502: "retryable",
        }
    )
    expected = {
        400: (P, Category.HTTP_4XX),
        401: (P, Category.HTTP_4XX),
        402: (R, Category.HTTP_4XX),
        404: (U, Category.HTTP_4XX),
        410: (R, Category.GONE),
        429: (R, Category.HTTP_429),
        200: (D, Category.OK),
        202: (R, Category.BAD_RESPONSE),
        500: (D, Category.OK),
        502: (R, Category.HTTP_GATEWAY),
        503: (R, Category.HTTP_5XX),
    }
    for status, (kind, category) in expected.items():
        got = table.classify(seen(status), NOW_US)
        assert (got.kind, got.category, got.disable_destination) == (kind, category, False), status
    # Naming 410 at all, even as what it is, keeps the destination enabled.
    assert not OutcomeTable.build(overrides={410: "permanent"}).classify(seen(410), 0).disable_destination


@pytest.mark.parametrize(
    "bad",
    [
        {"acknowledge": ""},
        {"acknowledge": []},
        {"acknowledge": "199"},
        {"acknowledge": "600"},
        {"acknowledge": "1xx"},
        {"acknowledge": "6xx"},
        {"acknowledge": "299-200"},
        {"acknowledge": "200-"},
        {"acknowledge": "2x"},
        {"acknowledge": "٢٠٠"},
        {"acknowledge": [True]},
        {"acknowledge": [None]},
        {"acknowledge": [200.0]},
        {"duplicate_status": 100},
        {"duplicate_status": True},
        {"duplicate_status": "409"},
        {"overrides": {"100": "retryable"}},
        {"overrides": {404: "deferred"}},
        {"overrides": {404: "interrupted"}},
        {"overrides": {404: "no_op"}},
        {"overrides": {404: ""}},
        {"overrides": {404: "Retryable"}},
        {"overrides": {409: "retryable"}, "duplicate_status": 409},
        {"duplicate_header": ""},
        {"duplicate_header": "a b"},
        {"duplicate_header": "a\r\n"},
        {"duplicate_header": None},
    ],
)
def test_bad_tables(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        OutcomeTable.build(**bad)  # type: ignore[arg-type]
    assert caught.value.param is not None


def test_a_table_is_its_own() -> None:
    overrides = {404: R}
    table = OutcomeTable(overrides=overrides)
    overrides[404] = P
    assert table.classify(seen(404), NOW_US).kind is R
    assert table == OutcomeTable(overrides={404: R})


kinds = st.sampled_from(["delivered", "retryable", "permanent", "unknown"])
tables = st.builds(
    OutcomeTable.build,
    acknowledge=st.lists(st.integers(200, 599), min_size=1, max_size=4),
    overrides=st.dictionaries(st.integers(200, 599), kinds, max_size=8),
    certificate=st.sampled_from(["permanent", "retryable"]),
)
header_pairs = st.lists(
    st.tuples(st.sampled_from([b"retry-after", b"webhook-duplicate", b"x"]), st.binary(max_size=12)),
    max_size=4,
)


@given(tables, st.integers(-5, 1100), header_pairs, st.binary(max_size=80), st.booleans(), st.integers(0, 50))
def test_total_over_responses(
    table: OutcomeTable,
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    truncated: bool,
    cap: int,
) -> None:
    got = table.classify(Response(status, tuple(headers), body, truncated), NOW_US, cap)
    assert got.kind in (D, R, P, U)
    assert got.status == status
    assert got.retry_after_us is None or (got.kind in (R, U) and 0 <= got.retry_after_us <= MAX_US)
    assert got.excerpt is None or (0 < len(got.excerpt) <= cap and got.kind is not D)
    if status in table.overrides:
        assert got.kind is table.overrides[status]
        assert not got.disable_destination
    assert (Flag.RESPONSE_TRUNCATED in got.flags) == truncated


@given(tables, st.sampled_from(Phase), st.sampled_from(Fault), st.booleans(), st.text(max_size=10))
def test_sent_is_never_retryable_and_unsent_never_unknown(
    table: OutcomeTable, phase: Phase, fault: Fault, sent: bool, detail: str
) -> None:
    got = table.classify(Failure(phase, fault, sent, detail), NOW_US)
    if sent:
        assert got.kind is U
    else:
        assert got.kind in (R, P, OutcomeKind.DEFERRED)
        assert got.kind is not OutcomeKind.DEFERRED or fault is Fault.OURS


def test_no_excerpt_unless_it_was_asked_for() -> None:
    assert TABLE.classify(seen(500, body=b"out of cheese"), NOW_US).excerpt is None
    assert TABLE.classify(seen(500, body=b"out of cheese"), NOW_US, 100).excerpt == "out of cheese"
    assert TABLE.classify(seen(500, body=b"out of cheese"), NOW_US, 6).excerpt == "out of"
    assert TABLE.classify(seen(200, body=b"thanks"), NOW_US, 100).excerpt is None
    assert TABLE.classify(seen(500), NOW_US, 100).excerpt is None


@pytest.mark.parametrize(
    ("body", "secret"),
    [
        (b'{"password": "hunter2", "x": 1}', "hunter2"),
        (b'{"password":"hunter 2 with spaces"}', "spaces"),
        (b'{"password":"hunter2', "hunter2"),
        (b"password=hunter2&x=1", "hunter2"),
        (b"Authorization: Bearer abc.def", "abc"),
        (b"bad basic dXNlcjpwYXNz here", "dXNlcjpwYXNz"),
        (b"api_key: k-123", "k-123"),
        (b"'session_id': 'abc'", "abc"),
        (b"signed with whsec_MfKQ9r8GKYqr", "MfKQ9r8GKYqr"),
        (b"user bob@example.com is unknown", "bob@"),
        (b"jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2ln", "eyJzdWIi"),
        (b"card 4111 1111 1111 1111", "1111"),
        (b"deadbeefdeadbeefdeadbeefdeadbeef", "deadbeef"),
    ],
)
def test_excerpts_are_redacted(body: bytes, secret: str) -> None:
    got = excerpt(body, 200)
    assert got is not None
    assert secret not in got
    assert "***" in got


def test_excerpts_are_bounded_and_printable() -> None:
    assert excerpt(b"a\x00b\x1b[31mc\r\nd\xff\xe2\x80\xae", 100) == "a b [31mc d\ufffd"
    assert len(excerpt(b"word " * 100_000, 10**9) or "") <= MAX_EXCERPT
    assert excerpt(b"", 10) is None
    assert excerpt(b" \n ", 10) is None


def test_an_excerpt_does_not_show_what_the_first_cut_halved() -> None:
    # One opaque run becomes three characters, and the address after it loses its @ to the cut.
    for run in range(1030, 1064):
        body = b"z" * run + b" bobbuilder@example.com and more text " * 3
        assert "bob" not in (excerpt(body, 10) or "")


@given(st.binary(max_size=400), st.integers(1, 100))
def test_excerpts_never_raise(body: bytes, cap: int) -> None:
    got = excerpt(body, cap)
    assert got is None or 0 < len(got) <= cap
