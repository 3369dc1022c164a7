"""Static headers: refused at configuration where they could do harm, masked where they are shown (O-71)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidInput
from redrive.webhooks.headers import (
    MASK,
    MAX_HEADERS,
    MAX_NAME,
    MAX_TOTAL,
    MAX_VALUE,
    RESERVED,
    check_headers,
    is_sensitive,
    redact,
    resolve_headers,
)
from redrive.webhooks.secrets import Secret, SecretRef, SecretUnavailable


def test_accepted_in_order_and_unchanged() -> None:
    given_ = {"X-Env": "prod", "User-Agent": "acme hooks/1.0", "x-empty": "", "X-Tab": "a\tb", "x-u": "~!"}
    assert check_headers(given_) == tuple(given_.items())
    assert check_headers([("a", "1"), ("b", "2")]) == (("a", "1"), ("b", "2"))
    assert check_headers({}) == ()
    assert check_headers({"!#$%&'*+-.^_`|~09aZ": "x"})


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a:",
        ":authority",
        "a\r",
        "a\n",
        "a\x00",
        "a\tb",
        "a\x7f",
        "naïve",
        "a/b",
        "a(b)",
        '"a"',
        "a\r\nX: 1",
        "x" * (MAX_NAME + 1),
        None,
        3,
        b"x-a",
    ],
)
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers([(name, "v")])  # type: ignore[list-item]
    assert caught.value.param == "headers"


@pytest.mark.parametrize(
    "value",
    [
        "a\r\nX-Injected: 1",
        "a\nb",
        "a\rb",
        "a\x00b",
        "a\x01",
        "a\x1b[31m",
        "a\x7f",
        "a\x85",
        "a\n",
        "\na",
        " a",
        "a ",
        "\ta",
        " ",
        "café",
        "\u2028",
        "\ud800",
        "x" * (MAX_VALUE + 1),
        1,
        1.5,
        True,
        None,
        b"bytes",
        {"a": 1},
        ["a"],
    ],
)
def test_bad_values(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers({"X-Custom": value})  # type: ignore[dict-item]
    assert caught.value.param == "headers"
    assert "Injected" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *sorted(RESERVED),
        "Host",
        "CONTENT-LENGTH",
        "webhook-id",
        "Webhook-Signature",
        "webhook-anything",
        "Redrive-Attempt",
        "proxy-authorization",
        "Proxy-Connection",
        "Idempotency-Key",
    ],
)
def test_reserved_names(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers({name: "x"})
    assert name.lower() in str(caught.value)


def test_limits_and_duplicates() -> None:
    assert len(check_headers({f"x-{i}": "v" for i in range(MAX_HEADERS)})) == MAX_HEADERS
    with pytest.raises(InvalidInput):
        check_headers({f"x-{i}": "v" for i in range(MAX_HEADERS + 1)})
    with pytest.raises(InvalidInput):
        check_headers({f"x-{i}": "v" * MAX_VALUE for i in range(MAX_TOTAL // MAX_VALUE)})
    with pytest.raises(InvalidInput):
        check_headers([("X-A", "1"), ("x-a", "2")])
    with pytest.raises(InvalidInput):
        check_headers(("x-endless", "v") for _ in iter(int, 1))


SENSITIVE_NAMES = [
    "Authorization",
    "Cookie",
    "X-API-Key",
    "x_api_key",
    "apikey",
    "Ocp-Apim-Subscription-Key",
    "X-Functions-Key",
    "X-Auth-Token",
    "X-Auth",
    "PRIVATE-TOKEN",
    "X-Gitlab-Token",
    "X-Shared-Secret",
    "X-Password",
    "X-Signature",
    "X-Session",
    "X-Amz-Security-Token",
    "X-Credential",
    "Key",
]


@pytest.mark.parametrize("name", SENSITIVE_NAMES)
def test_credentials_are_references(name: str) -> None:
    assert is_sensitive(name)
    with pytest.raises(InvalidInput) as caught:
        check_headers({name: "hunter2hunter2"})
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"
    assert check_headers({name: "env:ACME_TOKEN"}) == ((name, "env:ACME_TOKEN"),)
    assert check_headers({name: "file:/run/secrets/acme"})
    assert redact([(name, "hunter2")]) == [(name, MASK)]
    assert redact([(name, "env:ACME_TOKEN")]) == [(name, "env:ACME_TOKEN")]


@pytest.mark.parametrize(
    "name", ["X-Env", "X-Author", "User-Agent", "X-Routing-Key", "Accept", "X-Keyboard", "X-Signal"]
)
def test_other_names_are_not_sensitive(name: str) -> None:
    assert not is_sensitive(name)
    assert redact([(name, "shown")]) == [(name, "shown")]


@pytest.mark.parametrize(
    "value",
    [
        "Bearer abcdefghijklmnopqrstuvwxyz",
        "basic dXNlcjpwYXNzd29yZDEyMw==",
        "whsec_MfKQ9r8GKYqrTwjUPD8I",
        "whsk_abc",
    ],
)
def test_values_that_look_like_credentials_under_any_name(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers({"X-Anything": value})
    assert value not in str(caught.value)
    assert redact([("X-Anything", value)]) == [("X-Anything", MASK)]
    assert check_headers({"X-Plan": "Basic plan"})


@pytest.mark.parametrize("value", ["env:", "env:1A", "env:a-b", "file:", "file:relative", "env:whsec_MfKQ9r8G"])
def test_malformed_references_are_refused(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_headers({"X-Anything": value})
    assert caught.value.param == "headers"
    assert value in ("env:", "file:") or value not in str(caught.value)


def test_resolve_replaces_references_and_nothing_else() -> None:
    seen: list[SecretRef] = []

    def resolve(ref: SecretRef) -> Secret:
        seen.append(ref)
        return Secret(b"Bearer t0ken")

    headers = check_headers({"X-Env": "prod", "Authorization": "env:TOKEN"})
    assert resolve_headers(headers, resolve) == [(b"X-Env", b"prod"), (b"Authorization", b"Bearer t0ken")]
    assert seen == [SecretRef("env", "TOKEN")]


@pytest.mark.parametrize(
    "raw", [b"a\r\nX-Injected: 1", b"a\n", b"a\x00", b" a", b"caf\xc3\xa9", b"x" * (MAX_VALUE + 1)]
)
def test_a_secret_that_is_no_header_value_is_our_fault(raw: bytes) -> None:
    with pytest.raises(SecretUnavailable) as caught:
        resolve_headers((("Authorization", "env:TOKEN"),), lambda ref: Secret(raw))
    assert "env:TOKEN" in str(caught.value)
    assert "Injected" not in str(caught.value)


def test_redact_takes_bytes_and_trusts_no_wire() -> None:
    assert redact([(b"Set-Cookie", b"env:LOOKS_LIKE_A_REFERENCE"), (b"server", b"nginx")]) == [
        ("Set-Cookie", MASK),
        ("server", "nginx"),
    ]


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=5))
def test_whatever_is_accepted_is_one_header_line(items: list[tuple[str, str]]) -> None:
    try:
        accepted = check_headers(items)
    except InvalidInput:
        return
    for name, value in resolve_headers(accepted, lambda ref: Secret(b"x")):
        line = name + b": " + value
        assert not set(line) & set(b"\r\n\x00")
        assert line.isascii()
