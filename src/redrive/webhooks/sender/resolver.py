"""Name look-ups that one black hole cannot stall.

``getaddrinfo`` cannot be cancelled: a name whose servers never answer holds its thread for many seconds.
So every look-up has a thread of its own (not the event loop's executor), their number is bounded in all
and per host, and everyone who asks for the same name at the same time waits for the same look-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Protocol


class ResolverBusy(OSError):
    """Every look-up thread is taken: our own limit, not the name's fault."""


class Resolver(Protocol):
    """Turns a host name into IP addresses."""

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of ``host`` in the order in which to try them.

        Raises OSError (``socket.gaierror`` among them) where there is none.
        """
        ...


class _Lookup:
    __slots__ = ("host", "started", "waiters")

    def __init__(self, host: str, started: float) -> None:
        self.host = host
        self.started = started
        self.waiters: set[asyncio.Future[list[str]]] = set()


class SystemResolver:
    """``getaddrinfo`` in daemon threads.

    At most ``max_lookups`` are in flight, and 2 per host: a second one starts only where the first has been
    silent for ``patience_s`` seconds, in case its packets were lost. A host's second look-up may not take
    the last half of the threads.
    """

    def __init__(
        self,
        *,
        max_lookups: int = 32,
        patience_s: float = 1.0,
        getaddrinfo: Callable[[str, int], list[str]] | None = None,
    ) -> None:
        self._max = max_lookups
        self._patience = patience_s
        self._getaddrinfo = getaddrinfo or system_lookup
        self._in_flight: dict[str, list[_Lookup]] = {}
        self._count = 0

    async def resolve(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        lookup = self._join(loop, host, port)
        waiter: asyncio.Future[list[str]] = loop.create_future()
        lookup.waiters.add(waiter)
        try:
            return await waiter
        finally:
            lookup.waiters.discard(waiter)

    def _join(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> _Lookup:
        running = self._in_flight.get(host, [])
        if running:
            newest = running[-1]
            stale = loop.time() - newest.started > self._patience
            if not stale or len(running) >= 2 or self._count >= self._max // 2:
                return newest
        elif self._count >= self._max:
            raise ResolverBusy("every look-up thread is taken")
        lookup = _Lookup(host, loop.time())
        thread = threading.Thread(target=self._run, args=(loop, lookup, port), name="redrive-resolver", daemon=True)
        thread.start()
        self._count += 1
        self._in_flight.setdefault(host, []).append(lookup)
        return lookup

    def _run(self, loop: asyncio.AbstractEventLoop, lookup: _Lookup, port: int) -> None:
        result: list[str] | OSError
        try:
            result = self._getaddrinfo(lookup.host, port)
        except OSError as exc:
            result = exc
        except Exception:  # UnicodeError and the like: a waiter must always be told
            result = socket.gaierror(socket.EAI_NONAME, "unusable name")
        with contextlib.suppress(RuntimeError):  # the loop was closed while the name servers kept silent
            loop.call_soon_threadsafe(self._done, lookup, result)

    def _done(self, lookup: _Lookup, result: list[str] | OSError) -> None:
        self._count -= 1
        running = self._in_flight[lookup.host]
        running.remove(lookup)
        # An answer serves everyone who waits for this name, whichever look-up they joined.
        answered = [lookup, *running] if not isinstance(result, OSError) else [lookup]
        if not running:
            del self._in_flight[lookup.host]
        for one in answered:
            for waiter in one.waiters:
                if waiter.done():
                    continue
                if isinstance(result, OSError):
                    waiter.set_exception(result)
                else:
                    waiter.set_result(list(result))


def literal_address(host: str) -> str | None:
    """The address that ``host`` spells, or None for a name.

    Beside the usual forms this takes every spelling that ``inet_aton`` and so ``getaddrinfo`` would take
    (``127.1``, ``2130706433``, ``0x7f000001``, ``0177.0.0.1``): they are judged as what they mean.
    """
    try:
        address = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None and not address.scope_id:
            # Python releases differ on how to print these.
            return f"::ffff:{address.ipv4_mapped}"
        return str(address)
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None


def lookup_name(host: str) -> str:
    """``host`` as it is looked up: a dotted name is made absolute, so that no search domain is tried.

    A name without a dot (``localhost``, a container's name) is left alone: it means the local one. An entry
    for a dotted name in ``/etc/hosts`` is found only if it is spelt with the final dot.
    """
    if "." in host and not host.endswith("."):
        return host + "."
    return host


def system_lookup(host: str, port: int) -> list[str]:
    """One blocking ``getaddrinfo`` for TCP, duplicates dropped, order kept."""
    # Bytes keep Python's own IDNA codec out: the name has been prepared already.
    name = lookup_name(host).encode("ascii")
    answer = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in answer))
