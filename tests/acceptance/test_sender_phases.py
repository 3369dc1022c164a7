"""Where an exchange ended, and exactly how many requests the receiver saw: raw sockets, every point."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.acceptance.scripted_server import (
    OK,
    Deaf,
    Drip,
    Fin,
    Flood,
    HalfClose,
    ReadBytes,
    ReadRequest,
    Rst,
    ScriptedServer,
    Send,
    Wait,
)
from tests.acceptance.sender_rig import (
    BODY,
    LATE_S,
    SHORT,
    Failure,
    Fault,
    Phase,
    Response,
    Timeouts,
    both_loops,
    endpoint,
    one,
    request,
)

from redrive.webhooks.sender import Sender, dial
from redrive.webhooks.sender.protocol import Connection

HEAD = b"HTTP/1.1 200 OK\r\n"


@both_loops
def test_the_receiver_gets_exactly_the_bytes_that_were_asked(run):
    with ScriptedServer([ReadRequest(), Send(OK)]) as server:
        asked = request(endpoint(server.port))
        seen = run(one(asked))
    assert seen == Response(200, ((b"content-length", b"2"),), b"ok")
    assert server.requests == [
        b"POST /hook?x=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept-Encoding: identity\r\n"
        b"Content-Type: application/json\r\nwebhook-id: dlv_1\r\nUser-Agent: redrive\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (server.port, len(BODY), BODY)
    ]


STANDS = [
    # name, steps after the request was read, status, body, truncated
    (
        "interim",
        [Send(b"HTTP/1.1 100 C\r\n\r\n"), Send(b"HTTP/1.1 103 E\r\nA: b\r\n\r\n"), Send(OK)],
        200,
        b"ok",
        False,
    ),
    (
        "chunked",
        [Send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"), Send(b"0\r\n\r\n")],
        200,
        b"ok",
        False,
    ),
    ("close-delimited, FIN", [Send(HEAD + b"\r\nok"), Fin()], 200, b"ok", False),
    ("close-delimited, half-close", [Send(HEAD + b"\r\nok"), HalfClose()], 200, b"ok", False),
    ("redirect", [Send(b"HTTP/1.1 307 T\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")], 307, b"", False),
    (
        "gzip",
        [Send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8bX")],
        200,
        b"\x1f\x8bX",
        False,
    ),
    ("FIN mid-body", [Send(HEAD + b"Content-Length: 20\r\n\r\nhello"), Fin()], 200, b"hello", True),
    ("FIN after head", [Send(HEAD + b"Content-Length: 20\r\n\r\n"), Fin()], 200, b"", True),
    (
        "FIN mid-chunk",
        [Send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhello"), Fin()],
        200,
        b"hello",
        True,
    ),
    ("RST after head", [Send(HEAD + b"Content-Length: 20\r\n\r\n"), Rst()], 200, b"", True),
    ("body over the cap", [Send(HEAD + b"Content-Length: 99\r\n\r\n" + b"a" * 99)], 200, b"a" * 50, True),
    ("endless body", [Send(HEAD + b"\r\n"), Flood(b"a" * 4096)], 200, b"a" * 50, True),
    (
        "endless chunks",
        [Send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n"), Flood(b"3\r\naaa\r\n" * 500)],
        200,
        b"a" * 50,
        True,
    ),
    ("drip body", [Send(HEAD + b"Content-Length: 9000\r\n\r\n"), Drip(b"a" * 9000, 0.05)], 200, None, True),
    ("silent body", [Send(HEAD + b"Content-Length: 9\r\n\r\nab"), Deaf()], 200, b"ab", True),
    ("surplus", [Send(OK + OK)], 200, b"ok", False),
]


@both_loops
@pytest.mark.parametrize(
    ("steps", "status", "body", "truncated"), [case[1:] for case in STANDS], ids=[case[0] for case in STANDS]
)
def test_a_whole_head_decides_whatever_becomes_of_the_body(run, steps, status, body, truncated):
    with ScriptedServer([ReadRequest(), *steps]) as server:
        started = time.monotonic()
        seen = run(one(request(endpoint(server.port), timeouts=SHORT, max_response_body=50)))
        assert time.monotonic() - started < SHORT.total + LATE_S
    assert isinstance(seen, Response)
    assert (seen.status, seen.truncated) == (status, truncated)
    assert seen.body == body or (body is None and set(seen.body) == {97})
    assert len(server.requests) == 1
    assert server.connections == 1


@both_loops
def test_a_reset_in_the_body_leaves_the_head_standing(run):
    # A reset may overtake the bytes before it, so it waits until the head has been parsed.
    async def main(server: ScriptedServer) -> object:
        return await one(request(endpoint(server.port), on_head=parsed.set))

    parsed = threading.Event()
    steps = [ReadRequest(), Send(HEAD + b"Content-Length: 20\r\n\r\nhello"), Wait(parsed), Rst()]
    with ScriptedServer(steps) as server:
        assert run(main(server)) == Response(200, ((b"content-length", b"20"),), b"hello", truncated=True)
    assert len(server.requests) == 1


LOST = [
    # name, steps, phase, fault, details, requests seen
    ("FIN after the request", [ReadRequest(), Fin()], Phase.SEND, Fault.LOST, {"eof", "ECONNRESET"}, 1),
    ("RST after the request", [ReadRequest(), Rst()], Phase.SEND, Fault.LOST, {"ECONNRESET"}, 1),
    ("half-close after the request", [ReadRequest(), HalfClose()], Phase.SEND, Fault.LOST, {"eof"}, 1),
    (
        "FIN after an interim",
        [ReadRequest(), Send(b"HTTP/1.1 100 C\r\n\r\n"), Fin()],
        Phase.SEND,
        Fault.LOST,
        {"eof"},
        1,
    ),
    ("FIN mid-head", [ReadRequest(), Send(HEAD + b"X: y"), Fin()], Phase.HEAD, Fault.LOST, {"eof"}, 1),
    ("FIN mid-status", [ReadRequest(), Send(b"HTT"), Fin()], Phase.HEAD, Fault.LOST, {"eof"}, 1),
    ("never answers", [ReadRequest(), Deaf()], Phase.SEND, Fault.TIMEOUT, {"first_byte"}, 1),
    ("stops mid-head", [ReadRequest(), Send(HEAD), Deaf()], Phase.HEAD, Fault.TIMEOUT, {"total"}, 1),
    (
        "drips its head",
        [ReadRequest(), Drip(HEAD + b"X" * 500, 0.05)],
        Phase.HEAD,
        Fault.TIMEOUT,
        {"total"},
        1,
    ),
    (
        "interim for ever",
        [ReadRequest(), Send(b"HTTP/1.1 102 P\r\n\r\n"), Deaf()],
        Phase.SEND,
        Fault.TIMEOUT,
        {"total"},
        1,
    ),
    (
        "interim flood",
        [ReadRequest(), Flood(b"HTTP/1.1 102 P\r\n\r\n" * 9)],
        Phase.HEAD,
        Fault.MALFORMED,
        {"interim_limit"},
        1,
    ),
    (
        "header flood",
        [ReadRequest(), Send(HEAD), Flood(b"X: y\r\n" * 999)],
        Phase.HEAD,
        Fault.MALFORMED,
        {"head_too_large"},
        1,
    ),
    ("SSH", [ReadRequest(), Send(b"SSH-2.0-x\r\n")], Phase.HEAD, Fault.MALFORMED, {"not_http_1"}, 1),
    (
        "smuggling",
        [ReadRequest(), Send(HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")],
        Phase.HEAD,
        Fault.MALFORMED,
        None,
        1,
    ),
    (
        "switching",
        [ReadRequest(), Send(b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")],
        Phase.HEAD,
        Fault.MALFORMED,
        {"upgrade"},
        1,
    ),
]


@both_loops
@pytest.mark.parametrize(
    ("steps", "phase", "fault", "details", "count"),
    [case[1:] for case in LOST],
    ids=[case[0] for case in LOST],
)
def test_without_a_head_a_written_request_is_unknown(run, steps, phase, fault, details, count):
    with ScriptedServer(steps) as server:
        started = time.monotonic()
        seen = run(one(request(endpoint(server.port), timeouts=SHORT)))
        took = time.monotonic() - started
    assert isinstance(seen, Failure)
    assert (seen.phase, seen.fault, seen.sent) == (phase, fault, True)
    assert details is None or seen.detail in details
    assert len(server.requests) == count
    assert server.connections == 1
    if fault is Fault.TIMEOUT:
        due = SHORT.total if seen.detail == "total" else SHORT.first_byte
        assert due <= took + 0.01
        assert took < due + LATE_S


@both_loops
def test_a_receiver_that_never_reads_ends_by_the_deadline(run):
    deaf = Deaf()
    with ScriptedServer([deaf]) as server:
        started = time.monotonic()
        asked = request(endpoint(server.port), b"x" * 16_000_000, timeouts=Timeouts(first_byte=5.0, total=0.3))
        seen = run(one(asked))
        assert time.monotonic() - started < 0.3 + LATE_S
    assert seen == Failure(Phase.SEND, Fault.TIMEOUT, True, "total")


@both_loops
def test_a_receiver_that_stops_reading_midway_and_answers_has_answered(run):
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    with ScriptedServer([ReadBytes(1000), Send(answer), Deaf()]) as server:
        seen = run(one(request(endpoint(server.port), b"x" * 16_000_000)))
    assert seen == Response(413, ((b"content-length", b"0"),))
    assert server.connections == 1


@both_loops
@pytest.mark.parametrize("steps", [[Fin()], [Rst()], [ReadBytes(10), Fin()], [ReadBytes(10), Rst()]])
def test_an_end_around_the_write_is_told_apart_by_whether_it_was_called(run, steps):
    calls: list[str] = []
    with ScriptedServer(steps) as server:
        seen = run(one(request(endpoint(server.port), b"x" * 500_000, on_send=lambda: calls.append("send"))))
    assert isinstance(seen, Failure)
    assert seen.fault is Fault.LOST
    assert seen.sent == bool(calls)
    assert seen.phase is (Phase.SEND if calls else Phase.CONNECT)
    assert server.connections == 1


def test_a_peer_that_speaks_before_the_request_is_never_written_to():
    banner = b"220 mail.example ESMTP\r\n"

    async def main(server: ScriptedServer) -> object:
        # The banner is in the kernel before the sender looks: its connection is held back until then.
        asked = request(endpoint(server.port), on_send=lambda: calls.append("send"))
        real = dial.Dialler._secure

        async def slow(self, *args):  # type: ignore[no-untyped-def]
            connection: Connection = await real(self, *args)
            while connection.broken is None:
                await asyncio.sleep(0)
            return connection

        dial.Dialler._secure = slow  # type: ignore[method-assign]
        try:
            return await one(asked)
        finally:
            dial.Dialler._secure = real  # type: ignore[method-assign]

    calls: list[str] = []
    with ScriptedServer([Send(banner)]) as server:
        seen = asyncio.run(main(server))
    assert seen == Failure(Phase.CONNECT, Fault.MALFORMED, False, "unsolicited")
    assert calls == []
    assert server.requests == []


@both_loops
def test_a_hook_that_refuses_at_the_last_moment_sends_nothing_and_frees_the_slot(run):
    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused

    async def main(port: int) -> tuple[object, int]:
        sender = Sender()
        try:
            with pytest.raises(Refused):
                await sender.send(request(endpoint(port), b"never", on_send=refuse))
            taken = sender.connections
            return await sender.send(request(endpoint(port), b"second")), taken
        finally:
            await sender.close()

    # The first connection waits for a request that never comes: it ends when the sender closes it.
    with ScriptedServer([ReadRequest()], [ReadRequest(), Send(OK)]) as server:
        seen, taken = run(main(server.port))
    assert isinstance(seen, Response)
    assert taken == 0
    assert [sent.rpartition(b"\r\n\r\n")[2] for sent in server.requests] == [b"second"]


@both_loops
def test_the_hooks_come_in_order_and_once(run):
    calls: list[str] = []
    with ScriptedServer([ReadRequest(), Send(b"HTTP/1.1 100 C\r\n\r\n"), Send(OK), ReadRequest(), Send(OK)]) as server:
        asked = request(
            endpoint(server.port),
            on_send=lambda: calls.append("send"),
            on_head=lambda: calls.append("head"),
        )
        run(one(asked))
    assert calls == ["send", "head"]
    assert len(server.requests) == 1
