"""The address guard: which addresses and ports a webhook may reach.

It judges when a destination is created and again for every address that is about to be dialled, so that
a DNS answer cannot change in between. ``ipaddress.is_global`` is not enough: on Python 3.11 it is True for
``64:ff9b::7f00:1``, ``2002:7f00:1::1``, ``::127.0.0.1``, ``fec0::1`` and more. So the tables are here: the
special-purpose registries of IANA (RFC 6890 and its updates), multicast, and every form that
embeds an IPv4 address.

Where IPv6 is concerned, only global unicast (2000::/3) and the well-known NAT64 prefix can be allowed at all.
"""

from __future__ import annotations

import ipaddress
import socket
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from redrive.errors import ConfigError, ForbiddenAddress
from redrive.webhooks.url import Target, inet_aton, looks_numeric

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

NOT_AN_ADDRESS = "not_an_address"
ZONE = "zone"
NOT_UNICAST = "not_global_unicast"

DENIED_IPV4: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link_local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4_relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)
"""IPv4 ranges that are refused, and the reason code of each."""

DENIED_IPV6: tuple[tuple[str, str], ...] = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::/96", "ipv4_compatible"),
    ("::ffff:0:0/96", "ipv4_mapped"),
    ("::ffff:0:0:0/96", "ipv4_translated"),
    ("64:ff9b::/32", "nat64"),
    ("::/8", "reserved"),
    ("100::/64", "discard"),
    ("2001::/32", "teredo"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment_routing"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link_local"),
    ("fec0::/10", "site_local"),
    ("ff00::/8", "multicast"),
)
"""IPv6 ranges that are refused; where two overlap the longer prefix names the reason."""

ALLOWED_IPV6: tuple[str, ...] = ("2001:3::/32", "2001:4:112::/48", "2001:20::/28", "2001:30::/28")
"""Globally reachable carve-outs of 2001::/23. Its anycast addresses for PCP, TURN and SRP (2001:1::1 to
2001:1::3) are left out on purpose: they reach the nearest such server, which is our own network's."""

NAT64 = "64:ff9b::/96"
"""The well-known prefix (RFC 6052): decoded, and judged by the IPv4 address inside."""

_LOW32 = 0xFFFF_FFFF
_ISATAP = frozenset((0x0000_5EFE, 0x0200_5EFE))  # RFC 5214, 6.1, with the u bit either way
_EMBEDDING = {"ipv4_compatible", "ipv4_mapped", "ipv4_translated", "teredo", "6to4"}
_GLOBAL_UNICAST = "2000::/3"


class _Ranges:
    """Disjoint integer ranges, searched by bisection. Of overlapping networks the longer prefix wins."""

    __slots__ = ("_reasons", "_starts")

    def __init__(self, networks: Iterable[tuple[IPNetwork, str | None]], bits: int, outside: str | None):
        ordered = sorted(networks, key=lambda item: item[0].prefixlen)
        edges = {0}
        for network, _ in ordered:
            edges.update((int(network.network_address), int(network.broadcast_address) + 1))
        edges.discard(1 << bits)
        self._starts = sorted(edges)
        self._reasons: list[str | None] = []
        for start in self._starts:
            reason = outside
            for network, code in ordered:
                if int(network.network_address) <= start <= int(network.broadcast_address):
                    reason = code
            self._reasons.append(reason)

    def find(self, number: int) -> str | None:
        return self._reasons[bisect_right(self._starts, number) - 1]


_IPV4 = _Ranges(((ipaddress.IPv4Network(text), code) for text, code in DENIED_IPV4), 32, None)
_IPV6 = _Ranges(
    [
        (ipaddress.IPv6Network(_GLOBAL_UNICAST), None),
        *((ipaddress.IPv6Network(text), code) for text, code in DENIED_IPV6),
        *((ipaddress.IPv6Network(text), None) for text in ALLOWED_IPV6),
        (ipaddress.IPv6Network(NAT64), None),
    ],
    128,
    NOT_UNICAST,
)
_NAT64_HIGH = int(ipaddress.IPv6Network(NAT64).network_address) >> 32


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """What the operator allows beside the public internet on port 443.

    ``allowed_private`` re-allows exactly the addresses of its networks: 10.0.0.0/8 does not
    re-allow ::ffff:10.0.0.1 or 64:ff9b::10.0.0.1. ``allowed_ports`` are the ports a URL may name, beside port
    80 for an http URL where ``allow_http`` is set. ``allow_http`` is for destinations that opted in to plain
    HTTP: the caller passes a policy without it for the others.

    Raises :class:`ConfigError` for a port out of range or something that is not a network.
    """

    allowed_private: tuple[IPNetwork, ...] = ()
    allowed_ports: frozenset[int] = frozenset({443})
    allow_http: bool = False
    _opened4: _Ranges = field(init=False, repr=False, compare=False)
    _opened6: _Ranges = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for port in self.allowed_ports:
            if type(port) is not int or not 1 <= port <= 65535:
                raise ConfigError("an allowed port must be 1 to 65535", param="allowed_ports")
        for network in self.allowed_private:
            if not isinstance(network, (ipaddress.IPv4Network, ipaddress.IPv6Network)):
                raise ConfigError(
                    "an allowed private range must be an IP network",
                    param="allowed_private",
                    hint="for example 127.0.0.0/8",
                )
        for name, version, bits in (("_opened4", 4, 32), ("_opened6", 6, 128)):
            mine = [(network, "open") for network in self.allowed_private if network.version == version]
            object.__setattr__(self, name, _Ranges(mine, bits, None))

    @classmethod
    def build(
        cls,
        allowed_private: Iterable[str] = (),
        allowed_ports: Iterable[int] = (443,),
        allow_http: bool = False,
    ) -> AddressPolicy:
        """From configuration: CIDRs as text (``10.0.0.0/8``). Raises :class:`ConfigError`."""
        networks: list[IPNetwork] = []
        for text in allowed_private:
            try:
                networks.append(ipaddress.ip_network(text))
            except (ValueError, TypeError):
                raise ConfigError(
                    "an allowed private range is not a CIDR, or has bits set beyond its prefix",
                    param="allowed_private",
                    hint="for example 127.0.0.0/8",
                ) from None
        return cls(tuple(networks), frozenset(allowed_ports), allow_http)

    def judge(self, address: object) -> str | None:
        """None if the address (an ``ipaddress`` object or its text) may be dialled; otherwise a bounded
        reason code. Never raises; anything that is not an address is refused.

        Codes are those of the tables, ``not_global_unicast``, ``zone``, ``not_an_address``, and for a denied
        IPv4 address inside an IPv6 one ``<form>:<code>``, for example ``nat64:loopback``.
        """
        if isinstance(address, str):
            if "%" in address:
                return ZONE
            try:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                number = int.from_bytes(socket.inet_pton(family, address), "big")
            except (OSError, ValueError):
                return NOT_AN_ADDRESS
            is_ipv6 = family == socket.AF_INET6
        elif isinstance(address, ipaddress.IPv4Address):
            number, is_ipv6 = int(address), False
        elif isinstance(address, ipaddress.IPv6Address):
            if address.scope_id is not None:
                return ZONE
            number, is_ipv6 = int(address), True
        else:
            return NOT_AN_ADDRESS
        if is_ipv6:
            return None if self._opened6.find(number) else _judge_ipv6(number)
        return None if self._opened4.find(number) else _IPV4.find(number)

    def check_target(self, target: Target) -> None:
        """Refuse at creation what can be told from the URL alone; raises :class:`ForbiddenAddress`.

        The scheme, the port, a literal address, an odd spelling of one (``0x7f.1`` is judged as what C
        libraries make of it) and ``localhost`` (RFC 6761). Names are judged again when they are dialled.
        """
        if target.scheme != "https" and not self.allow_http:
            raise _forbidden("plain http is not allowed", "use https, or allow http for this destination")
        if target.port not in self.allowed_ports and not (
            self.allow_http and target.scheme == "http" and target.port == 80
        ):
            raise _forbidden(f"port {target.port} is not allowed", "an operator may add it to allowed_ports")
        host = target.host
        if target.is_literal:
            reason = self.judge(host)
        elif looks_numeric(host):
            meant = inet_aton(host)
            reason = NOT_AN_ADDRESS if meant is None else self.judge(meant)
        elif host == "localhost" or host.endswith(".localhost"):
            reason = self.judge("127.0.0.1") and self.judge("::1")
        else:
            reason = None
        if reason is not None:
            raise _forbidden(
                f"the address guard refuses {host} ({reason})",
                "an operator may allow private networks with allowed_private",
            )


def _judge_ipv6(number: int) -> str | None:
    if number >> 32 == _NAT64_HIGH:
        inner = _IPV4.find(number & _LOW32)
        return None if inner is None else f"nat64:{inner}"
    reason = _IPV6.find(number)
    if reason is None:
        if (number >> 32) & _LOW32 in _ISATAP:
            inner = _IPV4.find(number & _LOW32)
            return None if inner is None else f"isatap:{inner}"
        return None
    if reason in _EMBEDDING:
        # Denied whatever is inside; the code says what was aimed at.
        if reason == "6to4":
            inside = number >> 80
        elif reason == "teredo":
            inside = ~number  # RFC 4380, 4: the client's address is stored inverted
        else:
            inside = number
        inner = _IPV4.find(inside & _LOW32)
        return reason if inner is None else f"{reason}:{inner}"
    return reason


def _forbidden(message: str, hint: str) -> ForbiddenAddress:
    return ForbiddenAddress(message, param="url", hint=hint)
