"""What every shape of response means, however it is cut into segments."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.webhooks.observation import Failure, Fault, Observation, Phase, Response
from redrive.webhooks.sender import Endpoint, IPAddress, Request
from redrive.webhooks.sender.pool import Pools
from redrive.webhooks.sender.protocol import MAX_INTERIM, Connection

HEAD = b"HTTP/1.1 200 OK\r\n"
OK = HEAD + b"Content-Length: 2\r\n\r\nok"


def allow(address: IPAddress) -> str | None:
    return None


ENDPOINT = Endpoint("http", "a.example", 80, guard=allow)


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed: str | None = None
        self.unsent = 0

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written.append(data)

    def close(self) -> None:
        self.closed = self.closed or "close"

    def abort(self) -> None:
        self.closed = self.closed or "abort"

    def is_closing(self) -> bool:
        return self.closed is not None

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Rig:
    """One connection with a slot, no network."""

    def __init__(self, **limits: int) -> None:
        self.pools = Pools(
            asyncio.get_running_loop(), max_connections=4, max_per_endpoint=4, idle_s=3.0, max_age_s=300.0
        )
        self.pool = self.pools.pool(ENDPOINT)
        self.pools.take(self.pool, fresh=False)
        self.ends = socket.socketpair()
        self.transport = FakeTransport()
        self.connection = Connection(self.pools, self.pool, self.ends[0], secure=False)
        self.connection.has_slot = True
        self.connection.connection_made(self.transport)
        self.request = Request(ENDPOINT, b"/", [], b"{}", **limits)

    def start(self) -> asyncio.Future[Observation]:
        return self.connection.exchange(self.request, 0.0, 1e9)

    def feed(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if self.transport.closed is not None:
                return
            self.connection.data_received(piece)

    @property
    def reusable(self) -> bool:
        return self.connection in self.pool.idle

    def close(self) -> None:
        self.connection.connection_lost(None)
        if self.pools._clock is not None:
            self.pools._clock.cancel()
        for end in self.ends:
            end.close()


def see(pieces: Iterable[bytes], *, end: bool = True, **limits: int) -> tuple[Observation, bool]:
    """What is observed when ``pieces`` arrive (and then EOF), and whether the connection can be reused."""

    async def main() -> tuple[Observation, bool]:
        rig = Rig(**limits)
        waiter = rig.start()
        rig.feed(pieces)
        reusable = rig.reusable
        if end and not waiter.done():
            rig.connection.eof_received()
        rig.close()
        assert waiter.done()
        assert rig.pools.taken == 0
        assert rig.transport.written == [rig.request.wire()]
        return waiter.result(), reusable

    return asyncio.run(main())


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """``data`` whole, byte by byte, and in two at every place."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]


GOOD = [
    # name, bytes, status, body, truncated, reusable
    ("length", OK, 200, b"ok", False, True),
    ("empty", HEAD + b"Content-Length: 0\r\n\r\n", 200, b"", False, True),
    ("length with blanks around", HEAD + b"Content-Length:  2 \t\r\n\r\nok", 200, b"ok", False, True),
    ("no reason", b"HTTP/1.1 204 \r\n\r\n", 204, b"", False, True),
    ("no reason, no blank", b"HTTP/1.1 500\r\nContent-Length: 0\r\n\r\n", 500, b"", False, True),
    ("not modified", b"HTTP/1.1 304 N\r\nContent-Length: 9\r\n\r\n", 304, b"", False, True),
    (
        "chunked",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
        200,
        b"ok",
        False,
        True,
    ),
    (
        "chunked, other case",
        HEAD + b"TRANSFER-ENCODING:  Chunked \r\n\r\n0\r\n\r\n",
        200,
        b"",
        False,
        True,
    ),
    (
        "trailers",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nSet-Cookie: z\r\nX: y\r\n\r\n",
        200,
        b"",
        False,
        True,
    ),
    ("until the end", HEAD + b"X: y\r\n\r\nok", 200, b"ok", False, False),
    ("until the end, nothing", HEAD + b"\r\n", 200, b"", False, False),
    ("close", HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False, False),
    (
        "close among others",
        HEAD + b"Connection: x, Close\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
        False,
        False,
    ),
    ("1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False, False),
    (
        "1.0 keep-alive",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
        False,
        False,
    ),
    ("continue", b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok", False, None),
    ("early hints", b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n" * 3 + OK, 200, b"ok", False, None),
    ("most interims", b"HTTP/1.1 102 P\r\n\r\n" * MAX_INTERIM + OK, 200, b"ok", False, None),
    ("redirect", b"HTTP/1.1 302 F\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", 302, b"", False, True),
    (
        "encoded",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        200,
        b"\x1f\x8b",
        False,
        True,
    ),
    ("upgrade offered", HEAD + b"Upgrade: h2c\r\nContent-Length: 0\r\n\r\n", 200, b"", False, True),
    # The head stands, the connection does not.
    ("cut body", HEAD + b"Content-Length: 20\r\n\r\nhello", 200, b"hello", True, False),
    ("no body", HEAD + b"Content-Length: 20\r\n\r\n", 200, b"", True, False),
    ("cut chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nok", 200, b"ok", True, False),
    ("no last chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", 200, b"ok", True, False),
    ("bad chunk size", HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nok", 200, b"", True, False),
    ("bare LF chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n", 200, b"", True, False),
    ("huge chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n", 200, b"", True, False),
    (
        "length as a trailer",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 9\r\n\r\n",
        200,
        b"ok",
        True,
        False,
    ),
    ("body on 204", b"HTTP/1.1 204 N\r\nContent-Length: 5\r\n\r\n", 204, b"", False, False),
]


@pytest.mark.parametrize(
    ("data", "status", "body", "truncated", "reusable"), [case[1:] for case in GOOD], ids=[c[0] for c in GOOD]
)
def test_a_whole_head_stands(data, status, body, truncated, reusable):
    for pieces in cuts(data):
        seen, reused = see(pieces)
        assert isinstance(seen, Response), pieces
        assert (seen.status, seen.body, seen.truncated) == (status, body, truncated), pieces
        if reusable is False:
            assert not reused, pieces
        assert (b"set-cookie", b"z") not in seen.headers  # a trailer is no header
    # Which cuts a reuse survives is ours to choose, but the plain ones must.
    if reusable:
        assert see([data])[1]
        assert see([data[:-1], data[-1:]])[1] or data.endswith(b"\r\n")


@pytest.mark.parametrize("surplus", [b"\r\n", b"\n", b"x", b"H", b"HTTP/1.1 200 OK\r\n", OK, b"\0", b"\r\n\r\n" + OK])
@pytest.mark.parametrize(
    "message", [OK, HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"HTTP/1.1 204 N\r\n\r\n"]
)
def test_surplus_bytes_cost_the_connection_and_not_the_response(message, surplus):
    for pieces in ([message + surplus], [message[:20], message[20:] + surplus]):
        seen, reused = see(pieces)
        assert isinstance(seen, Response)
        assert not seen.truncated
        assert seen.body in (b"ok", b"")
        assert not reused


MALFORMED = [
    ("length and chunked", HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunked and length", HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n"),
    ("two lengths", HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
    ("the same length twice", HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
    ("length list", HEAD + b"Content-Length: 2, 2\r\n\r\nok"),
    ("length +2", HEAD + b"Content-Length: +2\r\n\r\nok"),
    ("length -2", HEAD + b"Content-Length: -2\r\n\r\nok"),
    ("length 0x2", HEAD + b"Content-Length: 0x2\r\n\r\nok"),
    ("length 2.0", HEAD + b"Content-Length: 2.0\r\n\r\nok"),
    ("length 1_0", HEAD + b"Content-Length: 1_0\r\n\r\nok"),
    ("length empty", HEAD + b"Content-Length: \r\n\r\nok"),
    ("length arabic", HEAD + "Content-Length: ٢\r\n\r\nok".encode()),
    ("length huge", HEAD + b"Content-Length: 99999999999999999999999\r\n\r\nok"),
    ("chunked, gzip", HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    ("gzip, chunked", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("xchunked", HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("identity", HEAD + b"Transfer-Encoding: identity\r\n\r\nok"),
    ("chunked twice", HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunked;q", HEAD + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
    ("chunked on 204", b"HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("chunked on 1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("folded", HEAD + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nok"),
    ("folded by tab", HEAD + b"X: a\r\n\tb\r\nContent-Length: 2\r\n\r\nok"),
    ("folded first", HEAD + b" X: a\r\nContent-Length: 2\r\n\r\nok"),
    ("blank before colon", HEAD + b"Content-Length : 2\r\n\r\nok"),
    ("tab before colon", HEAD + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    ("no name", HEAD + b": a\r\n\r\n"),
    ("no colon", HEAD + b"X\r\n\r\n"),
    ("NUL in value", HEAD + b"X: a\0b\r\n\r\n"),
    ("NUL in name", HEAD + b"X\0: a\r\n\r\n"),
    ("NUL in reason", b"HTTP/1.1 200 O\0K\r\nContent-Length: 2\r\n\r\nok"),
    ("bare CR in value", HEAD + b"X: a\rb\r\n\r\n"),
    ("bare CR in reason", b"HTTP/1.1 200 O\rK\r\n\r\n"),
    ("bare LF after value", HEAD + b"X: a\nContent-Length: 2\r\n\r\nok"),
    ("bare LF lines", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"),
    ("CR CR LF", HEAD + b"Content-Length: 2\r\n\r\r\nok"),
    ("control in value", HEAD + b"X: a\x01b\r\n\r\n"),
    ("0.9", b"<html>hello</html>"),
    ("0.9 spelt", b"HTTP/0.9 200 OK\r\n\r\nok"),
    ("2.0", b"HTTP/2.0 200 OK\r\n\r\nok"),
    ("2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("2 frame", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"),
    ("1.2", b"HTTP/1.2 200 OK\r\n\r\nok"),
    ("lower case", b"http/1.1 200 OK\r\n\r\nok"),
    ("RTSP", b"RTSP/1.0 200 OK\r\n\r\nok"),
    ("ICE", b"ICE/1.0 200 OK\r\n\r\nok"),
    ("blank lines first", b"\r\n\r\n" + OK),
    ("two blanks", b"HTTP/1.1  200 OK\r\n\r\n"),
    ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n"),
    ("TLS alert", b"\x15\x03\x01\x00\x02\x02\x46"),
    ("status 99", b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n"),
    ("status 600", b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n"),
    ("status 999", b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n"),
    ("status 20", b"HTTP/1.1 20 X\r\nContent-Length: 0\r\n\r\n"),
    ("status 2000", b"HTTP/1.1 2000 X\r\nContent-Length: 0\r\n\r\n"),
    ("status abc", b"HTTP/1.1 abc X\r\nContent-Length: 0\r\n\r\n"),
    ("switching", b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nfoo"),
    ("switching, bare", b"HTTP/1.1 101 S\r\n\r\n" + OK),
    ("interim with a body", b"HTTP/1.1 103 E\r\nContent-Length: 2\r\n\r\nok" + OK),
    ("interim chunked", b"HTTP/1.1 103 E\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + OK),
    ("one interim too many", b"HTTP/1.1 102 P\r\n\r\n" * (MAX_INTERIM + 1) + OK),
]


@pytest.mark.parametrize("data", [case[1] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_a_shape_that_two_readers_could_read_differently_is_malformed(data):
    for pieces in cuts(data):
        seen, reused = see(pieces)
        assert isinstance(seen, Failure), pieces
        assert (seen.phase, seen.fault, seen.sent) == (Phase.HEAD, Fault.MALFORMED, True), pieces
        assert seen.detail.replace("_", "").isalnum(), seen
        assert not reused


def test_a_head_may_be_as_large_as_the_cap_and_no_larger():
    for limit in (64, 1_000):
        for size in range(limit - 3, limit + 4):
            filler = b"a" * (size - len(HEAD) - len(b"Content-Length: 2\r\nX: \r\n\r\n"))
            data = HEAD + b"Content-Length: 2\r\nX: " + filler + b"\r\n\r\n"
            assert len(data) == size
            for pieces in ([data + b"ok"], [data, b"ok"], [data[:40], data[40:] + b"ok"]):
                seen, _ = see(pieces, max_response_head=limit)
                if size <= limit:
                    assert isinstance(seen, Response), (size, pieces)
                else:
                    assert seen == Failure(Phase.HEAD, Fault.MALFORMED, True, "head_too_large"), (
                        size,
                        pieces,
                    )


def test_a_long_reason_counts():
    data = b"HTTP/1.1 200 " + b"a" * 500 + b"\r\nContent-Length: 0\r\n\r\n"
    assert isinstance(see([data], max_response_head=len(data))[0], Response)
    seen, _ = see([data], max_response_head=len(data) - 1)
    assert seen == Failure(Phase.HEAD, Fault.MALFORMED, True, "head_too_large")


def test_a_head_without_an_end_stops_at_the_cap():
    pieces = [HEAD] + [b"X: " + b"a" * 100 + b"\r\n"] * 1_000
    seen, _ = see(pieces, max_response_head=2_000)
    assert seen == Failure(Phase.HEAD, Fault.MALFORMED, True, "head_too_large")


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_body_is_cut_at_the_cap(size):
    body = b"0123456789A"[:size]
    shapes = [
        HEAD + b"Content-Length: %d\r\n\r\n%b" % (size, body),
        HEAD + b"\r\n" + body,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body),
    ]
    for data in shapes:
        for pieces in cuts(data):
            seen, reused = see(pieces, max_response_body=10)
            assert isinstance(seen, Response)
            assert (seen.body, seen.truncated) == (body[:10], size > 10), pieces
            assert not (reused and size > 10)


def test_endless_trailers_and_extensions_stop():
    start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    for filler in (b"X: " + b"a" * 1_000 + b"\r\n", b"Y: " + b"b" * 4_000 + b"\r\n"):
        pieces = [start] + [filler] * 10_000
        seen, _ = see(pieces, end=False, max_response_body=10)
        assert isinstance(seen, Response)
        assert seen.truncated


@pytest.mark.parametrize(
    ("data", "phase"),
    [
        (b"", Phase.SEND),
        (b"H", Phase.HEAD),
        (b"HTTP/1.1 200 OK\r\nX", Phase.HEAD),
        (HEAD + b"Content-Length: 2\r\n", Phase.HEAD),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Phase.SEND),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2", Phase.HEAD),
    ],
)
def test_an_end_before_the_head_is_whole_is_lost_and_sent(data, phase):
    seen, _ = see([data] if data else [])
    assert seen == Failure(phase, Fault.LOST, True, "eof")


def run_rig(test) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        rig = Rig()
        try:
            test(rig)
        finally:
            rig.close()

    asyncio.run(main())


def test_an_interim_response_of_its_own_segment_costs_no_reuse():
    seen, reused = see([b"HTTP/1.1 100 Continue\r\n\r\n", OK])
    assert isinstance(seen, Response)
    assert seen.headers == ((b"content-length", b"2"),)
    assert reused


def test_bytes_on_an_idle_connection_end_it():
    def test(rig: Rig) -> None:
        rig.connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        assert rig.transport.closed == "abort"
        assert rig.connection.broken == "unsolicited"
        assert rig.pools.taken == 0

    run_rig(test)


def test_a_known_head_gives_the_same_response_again():
    def test(rig: Rig) -> None:
        heads = 0

        def on_head() -> None:
            nonlocal heads
            heads += 1

        rig.request = Request(ENDPOINT, b"/", [], b"{}", on_head=on_head)
        for _ in range(3):
            for body in (b"ok", b"no", b"\r\n"):
                waiter = rig.start()
                rig.connection.data_received(OK[:-2] + body)
                assert waiter.result() == Response(200, ((b"content-length", b"2"),), body)
                rig.pools.take_idle(rig.pool)
        assert heads == 9
        waiter = rig.start()  # the same head in pieces
        rig.feed([OK[:10], OK[10:]])
        assert waiter.result() == Response(200, ((b"content-length", b"2"),), b"ok")
        rig.pools.take_idle(rig.pool)
        waiter = rig.start()  # the same head and a byte more
        rig.feed([OK + b"x"])
        assert waiter.result() == Response(200, ((b"content-length", b"2"),), b"ok")
        assert not rig.reusable

    run_rig(test)


@pytest.mark.parametrize("length", [1, 2, 30, 40, 5000])
def test_a_304_that_names_a_length_is_not_taken_for_what_follows(length):
    """Its head must never be remembered short of the body it does not have."""

    def test(rig: Rig) -> None:
        silent = b"HTTP/1.1 304 Not Modified\r\nContent-Length: %d\r\n\r\n" % length
        waiter = rig.start()
        rig.connection.data_received(silent)
        assert waiter.result().status == 304
        if not rig.reusable:
            return
        rig.pools.take_idle(rig.pool)
        head = b"HTTP/1.1 200 OK\r\nX: \r\nContent-Length: 2\r\n\r\nok"
        same_size = head.replace(b"X: ", b"X: " + b"x" * max(0, len(silent) - len(head)))
        waiter = rig.start()
        rig.connection.data_received(same_size)
        assert waiter.result().status == 200

    run_rig(test)


def test_a_known_head_does_not_excuse_a_lower_cap():
    def test(rig: Rig) -> None:
        waiter = rig.start()
        rig.connection.data_received(OK)
        assert isinstance(waiter.result(), Response)
        rig.pools.take_idle(rig.pool)
        rig.request = Request(ENDPOINT, b"/", [], b"{}", max_response_body=1)
        waiter = rig.start()
        rig.connection.data_received(OK)
        assert waiter.result() == Response(200, ((b"content-length", b"2"),), b"o", truncated=True)

    run_rig(test)


def test_an_answer_before_the_request_has_left_stands_and_ends_the_connection():
    def test(rig: Rig) -> None:
        rig.transport.unsent = 1
        waiter = rig.start()
        rig.connection.data_received(OK)
        assert waiter.result() == Response(200, ((b"content-length", b"2"),), b"ok")
        assert rig.transport.closed == "abort"
        assert rig.pools.taken == 0

    run_rig(test)


@pytest.mark.parametrize(("times", "expected"), [((5.0, 9.0), "first_byte"), ((9.0, 5.0), "total")])
def test_the_deadline_names_itself(times, expected):
    def test(rig: Rig) -> None:
        waiter = rig.connection.exchange(rig.request, times[0] - 15.0, times[1])
        assert rig.connection.deadline == 5.0
        rig.connection.expire()
        assert waiter.result() == Failure(Phase.SEND, Fault.TIMEOUT, True, expected)

    run_rig(test)


def test_the_first_byte_lifts_only_its_own_deadline():
    def test(rig: Rig) -> None:
        waiter = rig.connection.exchange(rig.request, 0.0, 20.0)
        rig.connection.data_received(b"H")
        assert rig.connection.deadline == 20.0
        rig.connection.expire()
        assert waiter.result() == Failure(Phase.HEAD, Fault.TIMEOUT, True, "total")

    run_rig(test)


PIECES = [
    b"HTTP/1.1 ",
    b"200 OK\r\n",
    b"204 No\r\n",
    b"100 Continue\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"Content-Length: 2\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"X: y\r\n",
    b" ",
    b"ok",
    b"0\r\n\r\n",
    b"2\r\nok\r\n",
    b"\xff",
    b":",
    b"HTTP/1.0 ",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=12), st.booleans())
def test_anything_at_all_ends_in_one_observation(pieces, start_well):
    pieces = [piece for piece in pieces if piece]
    if start_well:
        pieces = [b"HTTP/1.1 ", b"200 OK\r\n", *pieces]
    seen, _ = see(pieces)
    whole, _ = see([b"".join(pieces)] if pieces else [])
    assert type(seen) is type(whole)  # how it is cut changes nothing
    if isinstance(seen, Failure):
        assert isinstance(whole, Failure)
        assert (seen.phase, seen.fault, seen.sent) == (whole.phase, whole.fault, True)
    else:
        assert isinstance(whole, Response)
        assert (seen.status, seen.headers) == (whole.status, whole.headers)
        assert seen.body == whole.body
        assert seen.truncated == whole.truncated
