"""The address guard: every row of the tables, both edges, the neighbours outside, and the known traps."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigError, ForbiddenAddress
from redrive.webhooks.guard import (
    ALLOWED_IPV6,
    DENIED_IPV4,
    DENIED_IPV6,
    NAT64,
    AddressPolicy,
    IPNetwork,
)
from redrive.webhooks.url import parse_url

PUBLIC = AddressPolicy()

# Written out again, apart from the code: a row lost there must not vanish here too.
IPV4_ROWS = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
]
IPV6_ROWS = [
    "::/8",
    "64:ff9b::/32",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]


def edges(text: str) -> tuple[IPNetwork, str, str]:
    network = ipaddress.ip_network(text)
    return network, str(network.network_address), str(network.broadcast_address)


def in_any(address: ipaddress.IPv4Address | ipaddress.IPv6Address, rows: list[str]) -> bool:
    return any(address in ipaddress.ip_network(row) for row in rows)


@pytest.mark.parametrize("row", IPV4_ROWS)
def test_ipv4_rows_and_their_neighbours(row: str) -> None:
    network, first, last = edges(row)
    middle = network.network_address + network.num_addresses // 2
    for address in (first, last, str(middle)):
        assert PUBLIC.judge(address) is not None
        assert PUBLIC.judge(ipaddress.ip_address(address)) == PUBLIC.judge(address)
    for number in (int(network.network_address) - 1, int(network.broadcast_address) + 1):
        if 0 <= number < 2**32:
            outside = ipaddress.IPv4Address(number)
            assert (PUBLIC.judge(outside) is None) == (not in_any(outside, IPV4_ROWS)), outside


@pytest.mark.parametrize("row", IPV6_ROWS)
def test_ipv6_rows_and_their_neighbours(row: str) -> None:
    network, first, last = edges(row)
    for address in (first, last):
        assert PUBLIC.judge(address) is not None, address
        assert PUBLIC.judge(ipaddress.ip_address(address)) == PUBLIC.judge(address)
    unicast = ipaddress.IPv6Network("2000::/3")
    for number in (int(network.network_address) - 1, int(network.broadcast_address) + 1):
        if 0 <= number < 2**128:
            outside = ipaddress.IPv6Address(number)
            allowed = outside in unicast and not in_any(outside, IPV6_ROWS)
            assert (PUBLIC.judge(outside) is None) == allowed, outside


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0", "unspecified"),
        ("10.1.2.3", "private"),
        ("127.0.0.1", "loopback"),
        ("169.254.169.254", "link_local"),
        ("100.100.100.200", "shared"),
        ("192.0.0.9", "reserved"),
        ("192.88.99.1", "6to4_relay"),
        ("198.19.255.255", "benchmarking"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::127.0.0.1", "ipv4_compatible:loopback"),
        ("::7f00:1", "ipv4_compatible:loopback"),
        ("::8.8.8.8", "ipv4_compatible"),
        ("::ffff:127.0.0.1", "ipv4_mapped:loopback"),
        ("::ffff:8.8.8.8", "ipv4_mapped"),
        ("::ffff:0:127.0.0.1", "ipv4_translated:loopback"),
        ("::ffff:0:8.8.8.8", "ipv4_translated"),
        ("64:ff9b::127.0.0.1", "nat64:loopback"),
        ("64:ff9b::a9fe:a9fe", "nat64:link_local"),
        ("64:ff9b::10.0.0.1", "nat64:private"),
        ("64:ff9b::8.8.8.8", None),
        ("64:ff9b::1:0:0", "nat64"),
        ("64:ff9b:1::8.8.8.8", "nat64"),
        ("2002:7f00:1::", "6to4:loopback"),
        ("2002:7f00:1::1", "6to4:loopback"),
        ("2002:a9fe:a9fe::1", "6to4:link_local"),
        ("2002:808:808::1", "6to4"),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", "teredo:loopback"),  # ~80ff:fffe = 127.0.0.1
        ("2001:0:4136:e378:8000:63bf:f7f7:f7f7", "teredo"),  # ~f7f7:f7f7 = 8.8.8.8
        ("2001:2::1", "reserved"),
        ("2001:10::1", "reserved"),
        ("2001:1::1", "reserved"),
        ("2001:1::2", "reserved"),
        ("2001:1::3", "reserved"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("5f00::1", "segment_routing"),
        ("fc00::1", "private"),
        ("fd12:3456::1", "private"),
        ("fe80::1", "link_local"),
        ("fec0::1", "site_local"),
        ("ff02::1", "multicast"),
        ("100::1", "discard"),
        ("200::1", "not_global_unicast"),
        ("4000::1", "not_global_unicast"),
        ("2606:4700::5efe:7f00:1", "isatap:loopback"),
        ("2606:4700::200:5efe:a00:1", "isatap:private"),
        ("2606:4700::5efe:808:808", None),
        ("2606:4700::1:5efe:7f00:1", None),
        ("fe80::5efe:7f00:1", "link_local"),
        ("2606:4700:4700::1111", None),
        ("2001:4860:4860::8888", None),
        ("93.184.216.34", None),
        ("8.8.8.8", None),
        ("fe80::1%eth0", "zone"),
        ("2606:4700::1%1", "zone"),
        ("", "not_an_address"),
        ("a.example", "not_an_address"),
        ("127.1", "not_an_address"),
        ("0177.0.0.1", "not_an_address"),
        ("1.2.3.4\x00", "not_an_address"),
        ("[::1]", "not_an_address"),
        ("١.1.1.1", "not_an_address"),
        ("8.8.8.8 ", "not_an_address"),
        ("\ud800", "not_an_address"),
        (ipaddress.IPv6Address("fe80::1%eth0"), "zone"),
        (None, "not_an_address"),
        (b"8.8.8.8", "not_an_address"),
        (134744072, "not_an_address"),
    ],
)
def test_reasons(address: object, reason: str | None) -> None:
    assert PUBLIC.judge(address) == reason


@pytest.mark.parametrize(
    "address",
    ["64:ff9b::7f00:1", "2002:7f00:1::1", "::7f00:1", "::ffff:0:7f00:1", "fec0::1", "5f00::1", "224.0.0.1"],
)
def test_addresses_that_the_standard_library_once_called_global(address: str) -> None:
    assert PUBLIC.judge(address) is not None


@pytest.mark.parametrize("row", ALLOWED_IPV6)
def test_carve_outs(row: str) -> None:
    _, first, last = edges(row)
    assert PUBLIC.judge(first) is None
    assert PUBLIC.judge(last) is None


@given(st.integers(0, 2**32 - 1))
def test_every_ipv4_address_by_the_plain_definition(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    assert (PUBLIC.judge(address) is None) == (not in_any(address, IPV4_ROWS))
    # The same address behind every embedding is never easier to reach.
    if PUBLIC.judge(address) is not None:
        for form in (
            f"::{address}",
            f"::ffff:{address}",
            f"::ffff:0:{address}",
            f"64:ff9b::{address}",
            f"2606:4700::5efe:{address}",
            f"2606:4700::200:5efe:{address}",
        ):
            assert PUBLIC.judge(form) is not None, form
        assert PUBLIC.judge(ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1)) is not None


@given(
    st.integers(0, 2**128 - 1)
    | st.sampled_from(IPV6_ROWS).flatmap(
        lambda row: st.integers(int(edges(row)[0].network_address), int(edges(row)[0].broadcast_address))
    )
)
def test_every_ipv6_address_by_the_plain_definition(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    if address in ipaddress.ip_network(NAT64):
        allowed = not in_any(ipaddress.IPv4Address(number & 0xFFFFFFFF), IPV4_ROWS)
    else:
        allowed = address in ipaddress.ip_network("2000::/3") and (
            not in_any(address, IPV6_ROWS) or in_any(address, list(ALLOWED_IPV6))
        )
        if (number >> 32) & 0xFFFFFFFF in (0x5EFE, 0x2005EFE):
            allowed = allowed and not in_any(ipaddress.IPv4Address(number & 0xFFFFFFFF), IPV4_ROWS)
    assert (PUBLIC.judge(address) is None) == allowed


def test_the_tables_hold_networks_only() -> None:
    for rows in (DENIED_IPV4, DENIED_IPV6):
        for text, reason in rows:
            assert ipaddress.ip_network(text)
            assert reason


def test_opt_in_opens_exactly_what_it_says() -> None:
    policy = AddressPolicy.build(["10.1.0.0/16", "127.0.0.1/32", "fd00:1::/64"])
    for address in (
        "10.1.0.0",
        "10.1.255.255",
        "127.0.0.1",
        "fd00:1::",
        "fd00:1::ffff:ffff:ffff:ffff",
        "8.8.8.8",
    ):
        assert policy.judge(address) is None, address
    for address in (
        "10.0.255.255",
        "10.2.0.0",
        "127.0.0.2",
        "127.0.0.0",
        "fd00:1:0:1::",
        "::1",
        "::ffff:10.1.0.1",
        "::10.1.0.1",
        "64:ff9b::10.1.0.1",
        "2002:a01:1::1",
        "2606:4700::5efe:10.1.0.1",
        "::ffff:127.0.0.1",
    ):
        assert policy.judge(address) is not None, address


def test_opt_in_of_an_embedded_form_is_not_an_opt_in_of_the_address() -> None:
    policy = AddressPolicy.build(["::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104"])
    assert policy.judge("::ffff:10.0.0.1") is None
    assert policy.judge("64:ff9b::10.0.0.1") is None
    assert policy.judge("10.0.0.1") == "private"
    assert policy.judge("64:ff9b::127.0.0.1") == "nat64:loopback"


@pytest.mark.parametrize("cidr", ["10.0.0.1/8", "10.0.0.0/33", "nonsense", "", "fe80::1%eth0/64", "10.0.0.0/8/8"])
def test_bad_networks(cidr: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AddressPolicy.build([cidr])
    assert caught.value.param == "allowed_private"


@pytest.mark.parametrize("port", [0, -1, 65536, True, "443", 443.0])
def test_bad_ports(port: object) -> None:
    with pytest.raises(ConfigError):
        AddressPolicy(allowed_ports=frozenset({port}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        AddressPolicy(allowed_private=("10.0.0.0/8",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example/",
        "https://93.184.216.34/",
        "https://[2606:4700::1]/",
        "https://134744072/",  # 8.8.8.8
        "https://0x8.8.2056/",  # 8.8.8.8
        "https://mylocalhost/",
        "https://localhost.example/",
    ],
)
def test_targets_allowed(url: str) -> None:
    PUBLIC.check_target(parse_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/",
        "https://a.example:80/",
        "https://a.example:8443/",
        "http://a.example:443/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://169.254.169.254/latest/meta-data/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://0/",
        "https://127.1./",
        "https://0x7f.1/",
        "https://a.example.1/",
        "https://1.2.3.4.5/",
        "https://256.256.256.256/",
        "https://0x/",
        "https://99999999999/",
        "https://localhost/",
        "https://LOCALHOST./",
        "https://x.localhost/",
    ],
)
def test_targets_refused(url: str) -> None:
    with pytest.raises(ForbiddenAddress) as caught:
        PUBLIC.check_target(parse_url(url))
    assert caught.value.param == "url"
    assert caught.value.hint


def test_ports_and_http_by_policy() -> None:
    with_http = AddressPolicy(allow_http=True)
    with_http.check_target(parse_url("http://a.example/"))
    with_http.check_target(parse_url("https://a.example/"))
    for url in ("http://a.example:8080/", "https://a.example:80/", "https://a.example:8443/"):
        with pytest.raises(ForbiddenAddress):
            with_http.check_target(parse_url(url))
    listed = AddressPolicy(allowed_ports=frozenset({443, 8443}))
    listed.check_target(parse_url("https://a.example:8443/"))
    for url in ("http://a.example:8443/", "http://a.example/", "https://a.example:8444/"):
        with pytest.raises(ForbiddenAddress):
            listed.check_target(parse_url(url))
    only = AddressPolicy(allowed_ports=frozenset({8443}))
    with pytest.raises(ForbiddenAddress):
        only.check_target(parse_url("https://a.example/"))


def test_local_receivers_by_opt_in() -> None:
    local = AddressPolicy.build(["127.0.0.0/8"], [443, 9000], allow_http=True)
    for url in (
        "http://127.0.0.1:9000/",
        "http://localhost:9000/",
        "http://127.1:9000/",
        "https://2130706433/",
    ):
        local.check_target(parse_url(url))
    for url in ("http://10.0.0.1:9000/", "http://[::1]:9000/", "http://127.0.0.1:9001/"):
        with pytest.raises(ForbiddenAddress):
            local.check_target(parse_url(url))


@pytest.mark.parametrize("text", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0"])
def test_odd_spellings_are_judged_as_the_socket_address_they_become(text: str) -> None:
    meant = socket.inet_ntoa(socket.inet_aton(text))
    assert PUBLIC.judge(meant) is not None


def test_policies_are_values() -> None:
    one = AddressPolicy.build(["10.0.0.0/8"])
    assert one == AddressPolicy.build(["10.0.0.0/8"])
    assert hash(one) == hash(AddressPolicy.build(["10.0.0.0/8"]))
    assert one != PUBLIC
