"""Requests are checked when they are made, and go out byte for byte."""

from __future__ import annotations

import pytest

from redrive.errors import InvalidInput
from redrive.webhooks.sender import Endpoint, IPAddress, Proxy, Request, Timeouts, Tls
from redrive.webhooks.sender.request import RESERVED_HEADERS


def allow(address: IPAddress) -> str | None:
    return None


HTTP = Endpoint("http", "a.example", 80, guard=allow)


@pytest.mark.parametrize(
    ("scheme", "host", "port", "expected"),
    [
        ("http", "a.example", 80, b"a.example"),
        ("http", "a.example", 443, b"a.example:443"),
        ("https", "a.example", 443, b"a.example"),
        ("https", "a.example", 8443, b"a.example:8443"),
        ("https", "2001:db8::1", 443, b"[2001:db8::1]"),
        ("http", "2001:db8::1", 81, b"[2001:db8::1]:81"),
    ],
)
def test_the_host_header_names_the_port_only_where_it_is_not_the_default(scheme, host, port, expected):
    request = Request(Endpoint(scheme, host, port, guard=allow), b"/", [], b"")
    assert b"\r\nHost: " + expected + b"\r\n" in request.wire()


def test_the_wire_is_exactly_this():
    body = b'{"\\u001B": 1.0, "b":\xc3\xa9}\n'
    request = Request(HTTP, b"/hook?a=%20b", [(b"Content-Type", b"application/json"), (b"X", b"")], body)
    assert request.wire() == (
        b"POST /hook?a=%20b HTTP/1.1\r\nHost: a.example\r\nAccept-Encoding: identity\r\n"
        b"Content-Type: application/json\r\nX: \r\nUser-Agent: redrive\r\nContent-Length: 24\r\n\r\n" + body
    )


def test_a_caller_may_name_its_own_agent():
    wire = Request(HTTP, b"/", [(b"User-agent", b"mine")], b"").wire()
    assert wire.lower().count(b"user-agent:") == 1
    assert b"User-agent: mine\r\n" in wire


def test_fresh_says_close():
    assert b"\r\nConnection: close\r\n" in Request(HTTP, b"/", [], b"", fresh=True).wire()
    assert b"connection:" not in Request(HTTP, b"/", [], b"").wire().lower()


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS))
def test_headers_of_the_sender_cannot_be_set(name):
    for spelling in (name, name.title(), name.upper()):
        with pytest.raises(InvalidInput):
            Request(HTTP, b"/", [(spelling, b"x")], b"")


@pytest.mark.parametrize("bad", [b"\r", b"\n", b"\r\n", b"\0", b"\x1f", b"\x7f", b"\r\nX-Injected: 1"])
def test_o71_no_control_character_passes_in_a_value(bad):
    for value in (bad, b"a" + bad, bad + b"a", b"a" + bad + b"b"):
        with pytest.raises(InvalidInput):
            Request(HTTP, b"/", [(b"X-A", b"fine"), (b"X-B", value)], b"")


def test_a_tab_and_high_bytes_pass_in_a_value():
    assert b"X: a\tb\xe9\r\n" in Request(HTTP, b"/", [(b"X", b"a\tb\xe9")], b"").wire()


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\n", b"a\0", b" a", b"a ", b"\xc3\xa9", b"a\tb"])
def test_a_name_is_a_token(name):
    with pytest.raises(InvalidInput):
        Request(HTTP, b"/", [(name, b"x")], b"")


@pytest.mark.parametrize(
    "target", [b"", b"a", b"http://x/", b"/a b", b"/a\r\n", b"/a\0", b"/a#b", b"*", b"/\x7f", b"/\xc3\xa9"]
)
def test_a_target_is_a_path_of_visible_ascii(target):
    with pytest.raises(InvalidInput):
        Request(HTTP, target, [], b"")


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "a@b", "[::1]", "fe80::1%eth0", "a\\b", "a\r\n", "é.example", ".a", "a" * 254]
)
def test_a_host_is_an_ascii_name_or_a_literal(host):
    with pytest.raises(InvalidInput):
        Endpoint("http", host, 80, guard=allow)


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_a_port_is_in_range(port):
    with pytest.raises(InvalidInput):
        Endpoint("http", "a", port, guard=allow)
    with pytest.raises(InvalidInput):
        Proxy("a", port)


def test_a_scheme_is_http_or_https():
    with pytest.raises(InvalidInput):
        Endpoint("ftp", "a", 80, guard=allow)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 86_401.0])
@pytest.mark.parametrize("name", ["dns", "connect", "tls", "first_byte", "total"])
def test_timeouts_are_positive_and_finite(name, value):
    with pytest.raises(InvalidInput):
        Timeouts(**{name: value})


def test_endpoints_are_equal_exactly_when_every_term_is():
    base = ("https", "a.example", 443)
    one, same = Endpoint(*base, guard=allow), Endpoint(*base, guard=allow)
    assert one == same
    assert hash(one) == hash(same)
    others = [
        Endpoint("http", "a.example", 443, guard=allow),
        Endpoint("https", "b.example", 443, guard=allow),
        Endpoint("https", "a.example", 444, guard=allow),
        Endpoint(*base, guard=lambda address: None),
        Endpoint(*base, guard=allow, tls=Tls(ca_file="ca.pem")),
        Endpoint(*base, guard=allow, tls=Tls(client_cert_file="c.pem", client_key_file="k.pem")),
        Endpoint(*base, guard=allow, proxy=Proxy("p", 3128)),
        Endpoint(*base, guard=allow, proxy=Proxy("p", 3128, b"Basic eA==")),
    ]
    assert len({one, *others}) == 1 + len(others)


def test_nothing_secret_is_printed():
    proxy = Proxy("p", 3128, b"Basic c2VjcmV0")
    endpoint = Endpoint("https", "a.example", 443, guard=allow, proxy=proxy)
    request = Request(endpoint, b"/", [(b"Authorization", b"Bearer s3cret")], b"pa55")
    assert not any(word in repr(request) for word in ("s3cret", "c2VjcmV0", "pa55"))


def test_a_proxy_authorization_has_no_line_end():
    with pytest.raises(InvalidInput):
        Proxy("p", 3128, b"Basic x\r\nX: y")
