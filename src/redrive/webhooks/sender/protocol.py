"""One connection, one exchange at a time, decided on the response head.

llhttp (httptools) parses; what it would let through and we would not is checked here: message framing
that two readers could read differently, HTTP versions, statuses, bytes that nobody asked for. RFC 9112
numbers the sections.

The exchange has one future. It resolves with a :class:`Response` once the head is whole and the body has
ended in whatever way, or with a :class:`Failure` if the head never came. Nothing is ever written twice.
"""

from __future__ import annotations

import asyncio
import errno
import re
import select
import socket
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import httptools

from redrive.webhooks.observation import Failure, Fault, Observation, Phase, Response
from redrive.webhooks.sender.request import Prepared, Request
from redrive.webhooks.sender.tls import tls_code

if TYPE_CHECKING:
    from redrive.webhooks.sender.pool import Pool, Pools

NEVER: Final = float("inf")
MAX_INTERIM: Final = 16
"""1xx responses tolerated before a final one."""
_NO_BODY = frozenset((204, 304))
_SLACK: Final = 65_536
"""Bytes that chunk headers, extensions and trailers may use beyond eight times the body cap."""
_CODE = re.compile(r"[^a-z0-9]+")


class _Known(NamedTuple):
    """A response head that was accepted, with a body of known length behind it in the same bytes."""

    head: bytes
    size: int
    status: int
    headers: tuple[tuple[bytes, bytes], ...]


class Connection(asyncio.Protocol):
    """A transport with its parser, its place in the pools, and at most one exchange.

    ``deadline`` (loop time) is the only timer: the pools' clock scans it. It belongs to the exchange while
    there is one, and to the idle lifetime otherwise.
    """

    __slots__ = (
        "_begun",
        "_body",
        "_body_size",
        "_broken",
        "_chunked",
        "_complete",
        "_extra",
        "_fed",
        "_first_at",
        "_head_done",
        "_headers",
        "_interim",
        "_keep_alive",
        "_known",
        "_length",
        "_malformed",
        "_parser",
        "_piece",
        "_poll",
        "_reason_size",
        "_request",
        "_status",
        "_total_at",
        "_transport",
        "deadline",
        "fault",
        "has_slot",
        "max_age_at",
        "pool",
        "pools",
        "secure",
        "served",
        "waiter",
    )

    def __init__(self, pools: Pools, pool: Pool, sock: socket.socket, *, secure: bool) -> None:
        self.pools = pools
        self.pool = pool
        self.secure = secure
        self.has_slot = False
        self.deadline = NEVER
        self.max_age_at = NEVER
        self.served = 0
        self.fault = Fault.LOST
        self.waiter: asyncio.Future[Observation] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._broken: str | None = None
        self._known: _Known | None = None

    # -- the pools' side -------------------------------------------------------------------------

    @property
    def broken(self) -> str | None:
        """Why this connection must not carry a request: closed, or the peer spoke out of turn."""
        return self._broken

    def readable(self) -> bool:
        """Whether bytes, an EOF or a reset wait in the kernel that the event loop has not seen yet."""
        return self._broken is not None or bool(self._poll.poll(0))

    def abort(self) -> None:
        """Close at once and give the slot back now. An exchange under way is forgotten: nobody waits."""
        self.waiter = None
        self._break("closed")
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle or finished connection in good manners; give the slot back now."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > 0:
            self.abort()  # a peer that does not read would keep a polite close waiting for ever
            return
        self._break("closed")
        transport.close()

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
        self.deadline = NEVER
        if self.has_slot:
            self.pools.discard(self)

    # -- the exchange ----------------------------------------------------------------------------

    def exchange(self, request: Request | Prepared, now: float, total_at: float) -> asyncio.Future[Observation]:
        """Write ``request`` in one piece and return the future of what is seen. Times are loop times."""
        transport = cast("asyncio.Transport", self._transport)
        self._request = request
        self._total_at = total_at
        self._fed = 0
        self._begun = self._head_done = False
        first_at = now + request.timeouts.first_byte
        self.deadline = first_at if first_at < total_at else total_at
        self.served += 1
        waiter: asyncio.Future[Observation] = self.pools.loop.create_future()
        self.waiter = waiter
        if request.on_send is not None:
            request.on_send()
        transport.write(request.wire())
        return waiter

    def _start_response(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_size = self._interim = self._status = self._reason_size = 0
        self._length: int | None = None
        self._complete = self._extra = self._chunked = False
        self._malformed: str | None = None

    def expire(self) -> None:
        """The deadline has passed."""
        if self.waiter is None:
            self.close()
        elif self._head_done:
            self._end(truncated=True, reuse=False)
        else:
            self._fail(Fault.TIMEOUT, "total" if self.deadline == self._total_at else "first_byte")

    def shut(self) -> None:
        """The sender is closing: end the exchange with what is known."""
        if self._head_done:
            self._end(truncated=True, reuse=False)
        else:
            self._fail(Fault.LOST, "shutdown")

    def _fail(self, fault: Fault, detail: str) -> None:
        """End without a head: the write was called, so what the receiver did is not known."""
        phase = Phase.HEAD if self._begun or fault is Fault.MALFORMED else Phase.SEND
        self._settle(Failure(phase, fault, sent=True, detail=detail))
        self.abort()

    def _end(self, *, truncated: bool, reuse: bool) -> None:
        """End with a head: the outcome stands, whatever became of the body."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        cap = self._request.max_response_body
        if len(body) > cap:
            body = body[:cap]
        # Settle first: release may hand this connection to the next exchange at once.
        self._settle(Response(self._status, tuple(self._headers), body, truncated))
        if reuse:
            self.pools.release(self)
        elif truncated:
            self.abort()
        else:
            self.close()

    def _end_known(self, known: _Known, data: bytes) -> None:
        """End with a head that is, byte for byte, one which this connection has already parsed.

        A parse is a function of its bytes, so it is not done twice: the message stops where the data does.
        """
        self._head_done = True
        request = self._request
        if request.on_head is not None:
            request.on_head()
        start = len(known.head)
        cap = request.max_response_body
        truncated = known.size - start > cap
        body = data[start : start + cap] if truncated else data[start:]
        self._settle(Response(known.status, known.headers, body, truncated))
        if self._is_flushed():
            self.pools.release(self)
        else:
            self.abort()

    def _is_flushed(self) -> bool:
        """Whether the whole request has left: an early answer leaves a connection that nobody can use."""
        transport = cast("asyncio.Transport", self._transport)
        return not transport.get_write_buffer_size() and not transport.is_closing()

    def _settle(self, observation: Observation) -> None:
        waiter, self.waiter = self.waiter, None
        self.deadline = NEVER
        if waiter is not None and not waiter.done():
            waiter.set_result(observation)

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.pools.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.waiter is None:
            self._broken = self._broken or "unsolicited"  # 9.2: no request is outstanding
            self.abort()
            return
        if not self._fed:
            known = self._known
            if (
                known is not None
                and len(data) == known.size
                and data.startswith(known.head)
                and len(known.head) <= self._request.max_response_head
            ):
                self._end_known(known, data)
                return
            self.deadline = self._total_at
            self._start_response()
            # llhttp would skip blank lines and take RTSP/ and ICE/ here.
            if not (data.startswith(b"HTTP/1.") or b"HTTP/1.".startswith(data)):
                self._fail(Fault.MALFORMED, "not_http_1")
                return
        self._fed += len(data)
        had_head = self._head_done
        self._piece = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._malformed = self._malformed or "upgrade"
        except httptools.HttpParserError as exc:
            if not self._head_done:
                self._malformed = self._malformed or _code(str(exc))
            self._extra = True
        request = self._request
        if not self._head_done:
            if self._malformed is None and self._fed > request.max_response_head:
                self._malformed = "head_too_large"
            if self._malformed is not None:
                self._fail(Fault.MALFORMED, self._malformed)
            return
        if not had_head:
            if self._fed > request.max_response_head and self._head_size() > request.max_response_head:
                self._fail(Fault.MALFORMED, "head_too_large")
                return
            if request.on_head is not None:
                request.on_head()
        if self._body_size > request.max_response_body:
            self._end(truncated=True, reuse=False)
        elif self._complete:
            reuse = self._keep_alive and not self._extra and self._ends_with_message(data, had_head)
            whole = self._length and self._body_size == self._length  # a 304 may name a length and send no body
            if reuse and self._fed == len(data) and whole and not self._interim:
                self._known = _Known(data[: len(data) - self._body_size], len(data), self._status, tuple(self._headers))
            self._end(truncated=False, reuse=reuse and self._is_flushed())
        elif self._extra or self._fed > 8 * request.max_response_body + request.max_response_head + _SLACK:
            self._end(truncated=True, reuse=False)

    def eof_received(self) -> None:
        self._lost("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        fault = Fault.LOST
        if exc is None:
            detail = "eof"
        elif isinstance(exc, ssl.SSLError):
            fault, detail = tls_code(exc)
            if fault is Fault.REFUSED:
                fault = Fault.LOST
        elif isinstance(exc, OSError) and exc.errno is not None:
            detail = errno.errorcode.get(exc.errno, "oserror")
        else:
            detail = "closed"
        self.fault = fault
        self._lost(detail, fault)
        self.pools.closed(self)
        self._transport = None
        del self._parser  # it holds our methods: break the circle

    def _lost(self, detail: str, fault: Fault = Fault.LOST) -> None:
        if self.waiter is not None:
            if not self._head_done:
                self._fail(fault, detail)
                return
            # 8: a body that ends with the connection is whole when the connection ends in order.
            whole = detail == "eof" and self._length is None and not self._chunked
            self._end(truncated=not whole, reuse=False)
            return
        if self._broken is None:
            self._broken = detail
        self._break(detail)

    # -- httptools -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._extra = True
        else:
            self._begun = True

    def on_status(self, reason: bytes) -> None:
        self._reason_size += len(reason)
        if b"\0" in reason:
            self._malformed = "nul"

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done:  # trailers, or a second message: neither counts
            return
        name = name.lower()
        if name == b"content-length":
            value = value.rstrip(b" \t")
            if self._length is not None or self._chunked or not value.isdigit() or len(value) > 18:
                self._malformed = "content_length"
            else:
                self._length = int(value)
        elif name == b"transfer-encoding":
            # 6.1: exactly one coding, or the length is anybody's guess.
            if self._length is not None or self._chunked or value.strip(b" \t").lower() != b"chunked":
                self._malformed = "transfer_encoding"
            self._chunked = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._head_done:
            return
        parser = self._parser
        status = parser.get_status_code()
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._malformed = "version"
        elif not 100 <= status <= 599:
            self._malformed = "status"
        elif status < 200:
            self._interim += 1
            if status == 101:
                self._malformed = "upgrade"
            elif self._chunked or self._length:
                self._malformed = "interim_body"  # 6.1, 6.2: neither may be sent with 1xx
            elif self._interim > MAX_INTERIM:
                self._malformed = "interim_limit"
        elif self._chunked and (version == "1.0" or status == 204):
            self._malformed = "transfer_encoding"
        if self._malformed is not None or status < 200:
            return
        self._status = status
        self._head_done = True
        self._keep_alive = (
            version == "1.1"
            and not self._request.fresh
            and not (status == 204 and self._length)  # a body that must not be: do not guess where it ends
            and parser.should_keep_alive()
        )

    def on_body(self, piece: bytes) -> None:
        self._piece += len(piece)
        if self._complete or self._body_size > self._request.max_response_body:
            return
        self._body.append(piece)
        self._body_size += len(piece)

    def on_message_complete(self) -> None:
        if self._head_done:
            self._complete = True
        else:  # an interim response has ended
            self._begun = False
            self._headers = []
            self._length = None

    # -- framing ---------------------------------------------------------------------------------

    def _head_size(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._headers) + self._reason_size + 17

    def _ends_with_message(self, data: bytes, had_head: bool) -> bool:
        """Whether ``data`` stops exactly where the message does.

        llhttp says so for most surplus bytes, but skips blank lines in silence. A wrong False costs one
        reuse and nothing else.
        """
        if self._chunked:
            return data.endswith(b"\r\n\r\n") and not data.endswith(b"\r\n\r\n\r\n")
        length = 0 if self._status in _NO_BODY else (self._length or 0)
        if had_head:
            return self._piece == len(data)
        return data.find(b"\r\n\r\n") + 4 + length == len(data)


def _code(text: str) -> str:
    """llhttp's reason (a constant of its source) as a short code."""
    return _CODE.sub("_", text.lower()).strip("_")[:60] or "parse"
