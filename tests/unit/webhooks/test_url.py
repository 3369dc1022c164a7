"""URLs are parsed once and strictly, and a refused one is never repeated."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidInput
from redrive.webhooks.url import MAX_URL, inet_aton, looks_numeric, parse_url


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "target", "literal", "header"),
    [
        ("https://a.example", "https", "a.example", 443, b"/", False, b"a.example"),
        ("https://a.example/", "https", "a.example", 443, b"/", False, b"a.example"),
        ("HTTPS://A.Example/Path", "https", "a.example", 443, b"/Path", False, b"a.example"),
        ("https://a.example?x=1", "https", "a.example", 443, b"/?x=1", False, b"a.example"),
        ("https://a.example/p?", "https", "a.example", 443, b"/p?", False, b"a.example"),
        (
            "https://a.example/p?a=1&b[]=%2F?",
            "https",
            "a.example",
            443,
            b"/p?a=1&b[]=%2F?",
            False,
            b"a.example",
        ),
        (
            "https://a.example//x/../y;v=1@z:9",
            "https",
            "a.example",
            443,
            b"//x/../y;v=1@z:9",
            False,
            b"a.example",
        ),
        ("https://a.example:443/", "https", "a.example", 443, b"/", False, b"a.example"),
        ("https://a.example:80/", "https", "a.example", 80, b"/", False, b"a.example:80"),
        ("http://a.example:80/", "http", "a.example", 80, b"/", False, b"a.example"),
        ("http://a.example:8080/", "http", "a.example", 8080, b"/", False, b"a.example:8080"),
        ("https://a.example:65535/", "https", "a.example", 65535, b"/", False, b"a.example:65535"),
        ("https://a.example:00443/", "https", "a.example", 443, b"/", False, b"a.example"),
        ("https://a.example./x", "https", "a.example", 443, b"/x", False, b"a.example"),
        (
            "https://my_service.internal/",
            "https",
            "my_service.internal",
            443,
            b"/",
            False,
            b"my_service.internal",
        ),
        ("http://localhost:9000/hook", "http", "localhost", 9000, b"/hook", False, b"localhost:9000"),
        (
            "https://xn--bcher-kva.example/",
            "https",
            "xn--bcher-kva.example",
            443,
            b"/",
            False,
            b"xn--bcher-kva.example",
        ),
        (
            "https://BÜCHER.example/",
            "https",
            "xn--bcher-kva.example",
            443,
            b"/",
            False,
            b"xn--bcher-kva.example",
        ),
        ("https://93.184.216.34/", "https", "93.184.216.34", 443, b"/", True, b"93.184.216.34"),
        ("http://127.0.0.1:81/", "http", "127.0.0.1", 81, b"/", True, b"127.0.0.1:81"),
        ("https://[2606:4700:0::1]/", "https", "2606:4700::1", 443, b"/", True, b"[2606:4700::1]"),
        ("https://[::1]:8443/x", "https", "::1", 8443, b"/x", True, b"[::1]:8443"),
        ("https://[::FFFF:127.0.0.1]/", "https", "::ffff:127.0.0.1", 443, b"/", True, b"[::ffff:127.0.0.1]"),
        ("https://2130706433/", "https", "2130706433", 443, b"/", False, b"2130706433"),
    ],
)
def test_accepted(text: str, scheme: str, host: str, port: int, target: bytes, literal: bool, header: bytes) -> None:
    got = parse_url(text)
    assert (got.scheme, got.host, got.port) == (scheme, host, port)
    assert (got.target, got.is_literal, got.host_header) == (target, literal, header)
    assert got.origin == f"{scheme}://{'[' + host + ']' if ':' in host else host}:{port}"


MARK = "s3cretmark"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https",
        "https:",
        "https:/",
        "https://",
        "https:///x",
        "https:a.example",
        "https:/a.example/",
        "//a.example/",
        "a.example/",
        "ftp://a.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "gopher://a.example/",
        "ws://a.example/",
        "unix:///x",
        "https://:443/",
        "https://?x",
        "https://./",
        "https://../",
        "https://a..example/",
        "https://.a.example/",
        "https://a.example../",
        "https://user@a.example/",
        "https://user:s3cretmark@a.example/",
        "https://@a.example/",
        "https://:@a.example/",
        "http://127.0.0.1\\@a.example/",
        "http://a.example\\.b.example/",
        "https:\\\\a.example\\x",
        "https://a.example/\\x",
        "https://a.example#@127.0.0.1/",
        "https://a.example/#",
        "https://a.example/x#frag",
        "https://a.example:/",
        "https://a.example:0/",
        "https://a.example:65536/",
        "https://a.example:99999/",
        "https://a.example:100000/",
        "https://a.example:-1/",
        "https://a.example:+443/",
        "https://a.example:443x/",
        "https://a.example:４４３/",
        "https://a.example:٤٤٣/",
        "https://a.example:80:80/",
        "https://user:s3cretmark/",
        "https://::1/",
        "https://[::1/",
        "https://::1]/",
        "https://[::1]x/",
        "https://[::1]443/",
        "https://[::1]:/",
        "https://[]/",
        "https://[127.0.0.1]/",
        "https://[v1.fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[1:2:3:4:5:6:7]/",
        "https://[::１]/",
        "https://a%2eexample/",
        "https://127%2e0.0.1/",
        "https://a.example%00.b/",
        "https://１２７.0.0.1/",
        "https://١٢٧.0.0.1/",
        "https://①②⑦.0.0.1/",
        "https://127。0。0。1/",
        "https://a．example/",
        "https://a｡example/",
        "https://faß.example/",
        "https://ς.example/",
        "https://a\u200db.example/",
        "https://a\u200cb.example/",
        "https://ａ.example/",
        "https://Ⓐ.example/",
        "https://ﬁ.example/",
        "https://\u2100.example/",
        "https://-a.example/",
        "https://a-.example/",
        "https://a*.example/",
        "https://a!b.example/",
        "https://a,b.example/",
        "https://{host}/",
        "https://" + "a" * 64 + ".example/",
        "https://" + "a." * 127 + "example/",
        "https://ü" + "a" * 63 + ".example/",
        "https://a.example/{id}",
        'https://a.example/"',
        "https://a.example/<x>",
        "https://a.example/`",
        "https://a.example/^",
        "https://a.example/[x]",
        "https://a.example/%",
        "https://a.example/%4",
        "https://a.example/%zz",
        "https://a.example/?%",
        "https://a.example/?q={x}",
        "https://a.example/ü",
        "https://a.example/?ü",
        " https://a.example/",
        "https://a.example/ ",
        "https://a.example/a b",
        "https://a .example/",
        "https://a.example/\r\nHost: b.example",
        "https://a.example\r\n/",
        "https://a.exa\tmple/",
        "https://a.example/\x00",
        "https://a.example/\x7f",
        "https://a.example/\x85",
        "https://a.example/\u2028",
        "https://a.example/\u00a0",
        "https://a.example/\ud800",
        "java\nscript://x",
        "https://a.example/" + "x" * MAX_URL,
        None,
        b"https://a.example/",
        3,
    ],
)
def test_refused(text: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url(text)  # type: ignore[arg-type]
    assert caught.value.param == "url"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    shown = f"{caught.value} {caught.value.hint}"
    assert MARK not in shown
    assert "a.example" not in shown
    assert shown.isascii()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://127.0.0.1\\@a.example/", "backslash"),
        ("https://user:s3cretmark@a.example/", "user information"),
        ("https://a.example/#x", "fragment"),
        ("https://a.example/a b", "white space"),
        ("https://[fe80::1%25eth0]/", "zone"),
        ("https://a%2eexample/", "percent sign"),
        ("https://１２７.0.0.1/", "not ASCII"),
        ("https://a。example/", "not ASCII"),
        ("https://a.example:0/", "1 and 65535"),
        ("https://" + "a" * 64 + ".example/", "longer than 63"),
        ("ftp://a.example/", "not http or https"),
        ("https:///x", "no host"),
    ],
)
def test_refusals_say_why(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse_url(text)


URLISH = st.text(alphabet="aZ09.:/?#[]@\\%-_ \t\n\x00é١xhtps", max_size=40)


@given(st.one_of(URLISH.map(lambda rest: f"https://{rest}"), URLISH, st.text(max_size=60)))
def test_what_is_accepted_means_the_same_to_the_standard_library(text: str) -> None:
    try:
        got = parse_url(text)
    except InvalidInput:
        return
    other = urlsplit(text)
    assert other.username is None
    assert other.fragment == ""
    assert other.scheme == got.scheme
    assert (other.port or (443 if got.scheme == "https" else 80)) == got.port
    host = (other.hostname or "").removesuffix(".")
    if got.is_literal:
        assert ipaddress.ip_address(host) == ipaddress.ip_address(got.host)
    else:
        assert host.encode("idna").decode().lower() == got.host
    assert got.host_header.isascii()
    assert not set(got.target) & set(b" \r\n\t\x00#\\")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F000001", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("00000000177.1", "127.0.0.1"),
        ("0x7f.0x0.0x0.0x1", "127.0.0.1"),
        ("10.65536", "10.1.0.0"),
        ("4294967295", "255.255.255.255"),
        ("4294967296", None),
        ("256.1", None),
        ("1.16777216", None),
        ("1.2.65536", None),
        ("1.2.3.256", None),
        ("1.2.3.4.5", None),
        ("08", None),
        ("0x", None),
        ("0xg", None),
        ("1.", None),
        ("", None),
        ("a", None),
        ("١٢٧.0.0.1", None),
    ],
)
def test_inet_aton(text: str, want: str | None) -> None:
    got = inet_aton(text)
    assert (None if got is None else str(got)) == want


@given(st.from_regex(r"(0x|0)?[0-9a-f]{1,11}(\.(0x|0)?[0-9a-f]{1,9}){0,4}", fullmatch=True))
def test_inet_aton_agrees_with_the_c_library(text: str) -> None:
    try:
        want: str | None = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        want = None
    got = inet_aton(text)
    assert (None if got is None else str(got)) == want


@pytest.mark.parametrize("host", ["1", "a.1", "a.0x", "a.0x1f", "1.2.3.4", "127.1", "x.0177", "x.09", "1."])
def test_numeric_last_labels(host: str) -> None:
    assert looks_numeric(host)


@pytest.mark.parametrize("host", ["a", "a.example", "1.example", "0xg", "a.1a", "1-1", "a.xn--p1ai"])
def test_other_last_labels(host: str) -> None:
    assert not looks_numeric(host)
