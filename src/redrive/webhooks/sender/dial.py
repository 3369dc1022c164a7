"""From a host name to a connection that is ready for a request: resolve, judge, connect, secure.

Each step has its own deadline under the total one, and each failure says in which step it happened. No
request byte is written here, so every failure of this module is certainly unsent.

The guard judges **every** address of an answer, and one forbidden address rejects the host. Only
addresses that were judged are dialled, by number, so that a second DNS answer cannot slip in between.
Behind a proxy the same holds: the name is resolved and judged here, and the proxy is asked to CONNECT to
the judged address, never to the name.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final

from redrive.webhooks.observation import Failure, Fault, Phase
from redrive.webhooks.sender.pool import Pool, Pools
from redrive.webhooks.sender.protocol import Connection
from redrive.webhooks.sender.proxy import open_tunnel
from redrive.webhooks.sender.request import Endpoint, IPAddress, Timeouts
from redrive.webhooks.sender.resolver import Resolver, ResolverBusy, literal_address
from redrive.webhooks.sender.tls import TlsContexts, key_material_failure, tls_code

MAX_ADDRESSES: Final = 8
"""Addresses tried in one attempt. All of them are judged, however many there are."""
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN))
_LOST = frozenset((errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN))
_GAI = {getattr(socket, name): name for name in dir(socket) if name.startswith("EAI_")}


class DialFailed(Exception):
    """Carries the failure out of a step."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def _failed(phase: Phase, fault: Fault, detail: str) -> DialFailed:
    return DialFailed(Failure(phase, fault, sent=False, detail=detail))


class Dialler:
    """Makes connections. ``connect_hook`` sees each (address, port) just before it is dialled."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        connect_hook: Callable[[str, int], None] | None = None,
    ) -> None:
        self._resolver = resolver
        self._contexts = TlsContexts()
        self._connect_hook = connect_hook

    async def dial(self, pools: Pools, pool: Pool, timeouts: Timeouts, total_at: float) -> Connection | Failure:
        """A connection for ``pool``, or why there is none. ``total_at`` is a loop time.

        The caller holds the slot, and gives it to the connection if there is one.
        """
        endpoint = pool.endpoint
        try:
            context = self._context(endpoint)
            addresses = await self._judged(endpoint, timeouts, total_at)
            sock = await self._reach(endpoint, addresses, timeouts, total_at)
            return await self._secure(pools, pool, sock, context, timeouts, total_at)
        except DialFailed as exc:
            return exc.failure

    # -- steps -----------------------------------------------------------------------------------

    def _context(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        if endpoint.scheme != "https":
            return None
        try:
            return self._contexts.get(endpoint.tls)
        except OSError as exc:
            raise DialFailed(key_material_failure(exc)) from None
        except ValueError:  # a path that no file can have
            raise _failed(Phase.TLS, Fault.OURS, "key_material") from None

    async def _judged(self, endpoint: Endpoint, timeouts: Timeouts, total_at: float) -> list[IPAddress]:
        """The addresses of the host, all of them allowed by the guard."""
        literal = literal_address(endpoint.host)
        if literal is not None:
            found = [literal]
        else:
            found = await self._resolve(endpoint.host, endpoint.port, timeouts, total_at)
        judged: list[IPAddress] = []
        for text in found:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                raise _failed(Phase.DNS, Fault.REFUSED, "bad_answer") from None
            if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
                raise _failed(Phase.GUARD, Fault.FORBIDDEN, "zone")
            reason = endpoint.guard(address)
            if reason is not None:
                raise _failed(Phase.GUARD, Fault.FORBIDDEN, reason)
            judged.append(address)
        return judged[:MAX_ADDRESSES]

    async def _resolve(self, host: str, port: int, timeouts: Timeouts, total_at: float) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(loop.time() + timeouts.dns, total_at)):
                found = await self._resolver.resolve(host, port)
        except TimeoutError:
            raise _failed(Phase.DNS, Fault.TIMEOUT, "dns") from None
        except ResolverBusy:
            raise _failed(Phase.DNS, Fault.OURS, "resolver_busy") from None
        except socket.gaierror as exc:
            ours = exc.errno == getattr(socket, "EAI_MEMORY", None)
            code = _GAI.get(exc.errno or 0, "EAI")
            raise _failed(Phase.DNS, Fault.OURS if ours else Fault.REFUSED, code) from None
        except OSError as exc:
            fault = Fault.OURS if exc.errno in _OURS else Fault.REFUSED
            raise _failed(Phase.DNS, fault, _errno(exc)) from None
        except RuntimeError:  # no thread could be started
            raise _failed(Phase.DNS, Fault.OURS, "no_thread") from None
        if not found:
            raise _failed(Phase.DNS, Fault.REFUSED, "EAI_NODATA")
        return found

    async def _reach(
        self, endpoint: Endpoint, addresses: list[IPAddress], timeouts: Timeouts, total_at: float
    ) -> socket.socket:
        """A TCP connection (or a tunnel) to the first address that takes one."""
        loop = asyncio.get_running_loop()
        until = min(loop.time() + timeouts.connect, total_at)
        failure: DialFailed | None = None
        for left in range(len(addresses), 0, -1):
            address = addresses[-left]
            now = loop.time()
            # A silent address may not use up the time of those after it.
            share = until if left == 1 else now + (until - now) / left
            try:
                if endpoint.proxy is None:
                    return await self._connect(str(address), endpoint.port, share)
                return await self._tunnel(endpoint, address, share, timeouts, total_at)
            except DialFailed as exc:
                # What the receiver said counts for more than that we ran out of something at the next address.
                if failure is None or exc.failure.fault is not Fault.OURS:
                    failure = exc
                if loop.time() >= until or exc.failure.fault is Fault.MALFORMED:
                    break
        assert failure is not None  # an answer has at least one address
        raise failure

    async def _connect(self, address: str, port: int, until: float) -> socket.socket:
        loop = asyncio.get_running_loop()
        if self._connect_hook is not None:
            self._connect_hook(address, port)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            async with asyncio.timeout_at(until):
                await loop.sock_connect(sock, (address, port))
        except BaseException as exc:
            if sock is not None:
                sock.close()
            if isinstance(exc, TimeoutError) and exc.errno is None:
                raise _failed(Phase.CONNECT, Fault.TIMEOUT, "connect") from None
            if isinstance(exc, OSError):
                raise _failed(Phase.CONNECT, _connect_fault(exc), _errno(exc)) from None
            raise
        return sock

    async def _tunnel(
        self, endpoint: Endpoint, address: IPAddress, until: float, timeouts: Timeouts, total_at: float
    ) -> socket.socket:
        proxy = endpoint.proxy
        assert proxy is not None
        try:
            literal = literal_address(proxy.host)
            if literal is None:
                literal = (await self._resolve(proxy.host, proxy.port, timeouts, total_at))[0]
            sock = await self._connect(literal, proxy.port, until)
        except DialFailed as exc:
            raise _failed(Phase.PROXY, Fault.OURS, exc.failure.detail) from None
        try:
            async with asyncio.timeout_at(until):
                failure = await open_tunnel(sock, address, endpoint.port, proxy.authorization)
        except BaseException as exc:
            sock.close()
            if isinstance(exc, TimeoutError) and exc.errno is None:
                raise _failed(Phase.PROXY, Fault.TIMEOUT, "connect") from None
            if isinstance(exc, OSError):
                raise _failed(Phase.PROXY, Fault.LOST, _errno(exc)) from None
            raise
        if failure is not None:
            sock.close()
            raise DialFailed(failure)
        return sock

    async def _secure(
        self,
        pools: Pools,
        pool: Pool,
        sock: socket.socket,
        context: ssl.SSLContext | None,
        timeouts: Timeouts,
        total_at: float,
    ) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(pools, pool, sock, secure=context is not None)
        until = min(loop.time() + timeouts.tls, total_at)
        try:
            # From here on the socket is the transport's, which closes it on every path.
            if context is None:
                await loop.create_connection(lambda: connection, sock=sock)
                return connection
            async with asyncio.timeout_at(until):
                await loop.create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=context,
                    server_hostname=pool.endpoint.host.rstrip("."),
                    # Ours is the deadline that counts; theirs must only not come first.
                    ssl_handshake_timeout=timeouts.tls + 60.0,
                    ssl_shutdown_timeout=1.0,
                )
        except BaseException as exc:
            connection.abort()
            if isinstance(exc, OSError | ValueError):
                if context is None and isinstance(exc, OSError):
                    raise _failed(Phase.CONNECT, _connect_fault(exc), _errno(exc)) from None
                raise _failed(Phase.TLS, *_secure_fault(exc)) from None
            raise
        finally:
            if not isinstance(loop, asyncio.BaseEventLoop):
                # uvloop closes the descriptor itself, but disarms our object only where the transport
                # outlived create_connection. Left armed, it would later close somebody else's descriptor.
                sock.detach()
        return connection


def _secure_fault(exc: OSError | ValueError) -> tuple[Fault, str]:
    if isinstance(exc, ssl.SSLError):
        return tls_code(exc)
    if isinstance(exc, TimeoutError):
        return Fault.TIMEOUT, "tls" if exc.errno is None else _errno(exc)
    if isinstance(exc, OSError):
        return (Fault.OURS if exc.errno in _OURS else Fault.LOST), _errno(exc)
    return Fault.REFUSED, "server_name"  # a name that TLS cannot ask for


def _connect_fault(exc: OSError) -> Fault:
    if exc.errno in _OURS:
        return Fault.OURS
    if exc.errno in _LOST:
        return Fault.LOST
    return Fault.TIMEOUT if exc.errno == errno.ETIMEDOUT else Fault.REFUSED


def _errno(exc: OSError) -> str:
    if exc.errno is None:
        return "eof" if isinstance(exc, ConnectionError) else type(exc).__name__
    return errno.errorcode.get(exc.errno, f"errno_{exc.errno}")
