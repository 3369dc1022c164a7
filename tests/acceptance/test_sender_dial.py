"""Names, the guard, connecting, the proxy: every failure here is certainly unsent."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import threading
import time

import pytest
from tests.acceptance.scripted_server import OK, Deaf, Fin, ReadRequest, Rst, ScriptedServer, Send, Tunnel
from tests.acceptance.sender_rig import (
    LATE_S,
    SHORT,
    Failure,
    Fault,
    Names,
    Phase,
    Proxy,
    Response,
    Sender,
    Timeouts,
    allow,
    both_loops,
    closed_port,
    endpoint,
    no_loopback,
    one,
    only_loopback,
    open_files,
    request,
)

from redrive.webhooks.sender import IPAddress, SystemResolver

SERVE = [ReadRequest(), Send(OK)]


# -- names -----------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize(
    ("answer", "fault", "detail"),
    [
        (socket.gaierror(socket.EAI_NONAME, "x"), Fault.REFUSED, "EAI_NONAME"),
        (socket.gaierror(socket.EAI_AGAIN, "x"), Fault.REFUSED, "EAI_AGAIN"),
        (socket.gaierror(socket.EAI_MEMORY, "x"), Fault.OURS, "EAI_MEMORY"),
        (OSError(errno.EMFILE, "x"), Fault.OURS, "EMFILE"),
        ([], Fault.REFUSED, "EAI_NODATA"),
        (["not an address"], Fault.REFUSED, "bad_answer"),
        (None, Fault.TIMEOUT, "dns"),
    ],
)
def test_o07_a_name_that_does_not_resolve_is_unsent(run, answer, fault, detail):
    names = Names(a_example=answer)
    seen = run(one(request(endpoint(80, "a.example"), timeouts=SHORT), resolver=names))
    assert seen == Failure(Phase.DNS, fault, False, detail)
    assert names.asked == ["a.example"]


@both_loops
def test_one_silent_name_does_not_hold_up_another(run):
    async def main() -> None:
        silent = threading.Event()

        def getaddrinfo(host: str, port: int) -> list[str]:
            if host == "hole.example":
                silent.wait(10)
            return ["127.0.0.1"]

        sender = Sender(resolver=SystemResolver(getaddrinfo=getaddrinfo, max_lookups=4))
        hole = [
            asyncio.create_task(sender.send(request(endpoint(server.port, "hole.example"), timeouts=SHORT)))
            for _ in range(30)
        ]
        await asyncio.sleep(0)
        for _ in range(3):
            seen = await sender.send(request(endpoint(server.port, "a.example"), timeouts=SHORT, fresh=True))
            assert isinstance(seen, Response)
        for seen in await asyncio.gather(*hole):
            assert seen == Failure(Phase.DNS, Fault.TIMEOUT, False, "dns")
        assert sender.connections == 0
        silent.set()
        await sender.close()

    with ScriptedServer(SERVE) as server:
        run(main())
    assert len(server.requests) == 3


@both_loops
def test_a_real_look_up_of_localhost(run):
    with ScriptedServer(SERVE) as server:
        seen = run(one(request(endpoint(server.port, "localhost", guard=only_loopback))))
    assert isinstance(seen, Response)
    assert b"Host: localhost:%d\r\n" % server.port in server.requests[0]


# -- the guard -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "::1", "::ffff:127.0.0.1"]
)
def test_o67_a_literal_is_judged_by_what_it_means(host):
    judged: list[IPAddress] = []

    def guard(address: IPAddress) -> str | None:
        judged.append(address)
        return "no"

    with ScriptedServer(SERVE) as server:
        seen = asyncio.run(one(request(endpoint(server.port, host, guard=guard))))
    assert seen == Failure(Phase.GUARD, Fault.FORBIDDEN, False, "no")
    assert str(judged[0]) in ("127.0.0.1", "::1", "::ffff:7f00:1")
    assert server.connections == 0


@pytest.mark.parametrize(
    "answer", [["192.0.2.1", "127.0.0.1"], ["127.0.0.1", "192.0.2.1"], ["192.0.2.1", "::1"], ["::1"]]
)
def test_o68_any_forbidden_address_rejects_the_host(answer):
    with ScriptedServer(SERVE) as server:
        asked = request(endpoint(server.port, "a.example", guard=no_loopback))
        seen = asyncio.run(one(asked, resolver=Names(a_example=answer)))
    assert seen == Failure(Phase.GUARD, Fault.FORBIDDEN, False, "loopback")
    assert server.connections == 0


def test_every_address_of_a_long_answer_is_judged():
    answer = [f"192.0.2.{n}" for n in range(1, 100)] + ["127.0.0.1"]
    asked = request(endpoint(80, "a.example", guard=no_loopback))
    seen = asyncio.run(one(asked, resolver=Names(a_example=answer)))
    assert seen == Failure(Phase.GUARD, Fault.FORBIDDEN, False, "loopback")


def test_an_address_with_a_zone_is_forbidden():
    asked = request(endpoint(80, "a.example"))
    seen = asyncio.run(one(asked, resolver=Names(a_example=["fe80::1%1"])))
    assert seen == Failure(Phase.GUARD, Fault.FORBIDDEN, False, "zone")


def test_the_judged_address_is_the_one_that_is_dialled():
    # A second answer would be a forbidden one: nobody asks twice.
    answers = [["127.0.0.1"], ["192.0.2.1"]]

    class Rebinding:
        async def resolve(self, host: str, port: int) -> list[str]:
            return answers.pop(0)

    with ScriptedServer(SERVE) as server:
        asked = request(endpoint(server.port, "a.example", guard=only_loopback))
        seen = asyncio.run(one(asked, resolver=Rebinding()))
    assert isinstance(seen, Response)
    assert answers == [["192.0.2.1"]]


# -- connecting ------------------------------------------------------------------------------------


@both_loops
def test_a_refused_connection_is_unsent(run):
    seen = run(one(request(endpoint(closed_port()))))
    assert seen == Failure(Phase.CONNECT, Fault.REFUSED, False, "ECONNREFUSED")


@both_loops
def test_the_next_address_is_tried_after_a_refusal(run):
    with ScriptedServer(SERVE) as server:
        names = Names(a_example=["127.0.0.2", "::1", "127.0.0.1"])
        seen = run(one(request(endpoint(server.port, "a.example")), resolver=names))
    assert isinstance(seen, Response)
    assert len(server.requests) == 1


class FullBacklog:
    """A port whose connection queue is full: a SYN gets no answer."""

    def __enter__(self) -> FullBacklog:
        self._sockets = [socket.socket()]
        self._sockets[0].bind(("127.0.0.2", 0))
        self._sockets[0].listen(0)
        self.port = self._sockets[0].getsockname()[1]
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", self.port))
            self._sockets.append(filler)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets:
            sock.close()


@both_loops
def test_a_silent_address_times_out_in_connect(run):
    with FullBacklog() as hole:
        started = time.monotonic()
        seen = run(one(request(endpoint(hole.port, "127.0.0.2"), timeouts=SHORT)))
        took = time.monotonic() - started
    assert seen == Failure(Phase.CONNECT, Fault.TIMEOUT, False, "connect")
    assert SHORT.connect - 0.01 <= took < SHORT.connect + LATE_S


@both_loops
def test_a_silent_address_leaves_time_for_the_next(run):
    names = Names(a_example=["127.0.0.2", "127.0.0.1"])
    with FullBacklog() as hole, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", hole.port))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(OK)
                peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        seen = run(one(request(endpoint(hole.port, "a.example"), timeouts=SHORT), resolver=names))
        thread.join(5)
    assert isinstance(seen, Response)


@both_loops
def test_no_descriptor_left_is_our_own_fault(run):
    async def main() -> None:
        sender = Sender()
        asked = request(endpoint(9))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = socket.socket()
        lowest = free.fileno()
        free.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            seen = await sender.send(asked)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert seen == Failure(Phase.CONNECT, Fault.OURS, False, "EMFILE")
        await sender.close()

    run(main())


@both_loops
def test_failures_leave_no_descriptor_open(run):
    async def main() -> None:
        port = closed_port()
        sender = Sender()
        await sender.send(request(endpoint(port)))
        before = open_files()
        for _ in range(50):
            await sender.send(request(endpoint(port)))
            await sender.send(request(endpoint(hole.port, "127.0.0.2"), timeouts=Timeouts(connect=0.001)))
        assert open_files() == before
        await sender.close()

    with FullBacklog() as hole:
        run(main())


# -- the proxy -------------------------------------------------------------------------------------


@both_loops
def test_a_proxy_is_asked_for_the_judged_address(run):
    with ScriptedServer(SERVE * 2) as server, ScriptedServer([ReadRequest(), Tunnel()]) as proxy:
        at = endpoint(
            server.port, "a.example", guard=only_loopback, proxy=Proxy("127.0.0.1", proxy.port, b"Basic eDp5")
        )

        async def main() -> None:
            sender = Sender(resolver=Names(a_example=["127.0.0.1"]))
            for _ in range(2):
                assert isinstance(await sender.send(request(at)), Response)
            await sender.close()

        run(main())
    assert len(server.requests) == 2
    assert b"Host: a.example:%d\r\n" % server.port in server.requests[0]
    assert b"Basic" not in server.requests[0]
    assert proxy.connections == 1
    head = bytes(proxy.peers[0].received[: proxy.peers[0].read_to])
    authority = b"127.0.0.1:%d" % server.port
    assert head == (
        b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nProxy-Authorization: Basic eDp5\r\n\r\n" % (authority, authority)
    )


def test_the_guard_judges_the_target_and_not_the_proxy():
    with ScriptedServer(SERVE) as proxy:
        at = endpoint(80, "a.example", guard=no_loopback, proxy=Proxy("127.0.0.1", proxy.port))
        seen = asyncio.run(one(request(at), resolver=Names(a_example=["127.0.0.1"])))
    assert seen == Failure(Phase.GUARD, Fault.FORBIDDEN, False, "loopback")
    assert proxy.connections == 0


@both_loops
@pytest.mark.parametrize(
    ("steps", "fault", "detail"),
    [
        ([Send(b"HTTP/1.1 403 No\r\n\r\n")], Fault.REFUSED, "proxy_403"),
        ([Send(b"HTTP/1.0 502 Bad\r\nX: y\r\n\r\n")], Fault.REFUSED, "proxy_502"),
        ([Send(b"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1/\r\n\r\n")], Fault.REFUSED, "proxy_302"),
        ([Send(b"HTTP/1.1 407 Auth\r\n\r\n")], Fault.OURS, "proxy_407"),
        ([Send(b"SSH-2.0\r\n\r\n")], Fault.MALFORMED, "not_http_1"),
        ([Send(b"HTTP/1.1 200 OK\r\n\r\nsurplus")], Fault.MALFORMED, "unsolicited"),
        ([Send(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000)], Fault.MALFORMED, "head_too_large"),
        ([Send(b"HTTP/1.1 20"), Fin()], Fault.LOST, "eof"),
        ([Rst()], Fault.LOST, "ECONNRESET"),
        ([Deaf()], Fault.TIMEOUT, "connect"),
    ],
)
def test_what_a_proxy_answers_is_unsent(run, steps, fault, detail):
    with ScriptedServer([ReadRequest(), *steps]) as proxy:
        at = endpoint(80, "192.0.2.1", proxy=Proxy("127.0.0.1", proxy.port))
        seen = run(one(request(at, timeouts=SHORT)))
    assert seen == Failure(Phase.PROXY, fault, False, detail)
    assert [one.split(b"\r\n")[0] for one in proxy.requests] == [b"CONNECT 192.0.2.1:80 HTTP/1.1"]


@both_loops
@pytest.mark.parametrize(("host", "detail"), [("127.0.0.1", "ECONNREFUSED"), ("missing.example", "EAI_NONAME")])
def test_an_unreachable_proxy_is_our_own_fault(run, host, detail):
    names = Names(missing_example=socket.gaierror(socket.EAI_NONAME, "x"))
    at = endpoint(80, "192.0.2.1", proxy=Proxy(host, closed_port()))
    seen = run(one(request(at, timeouts=SHORT), resolver=names))
    assert seen == Failure(Phase.PROXY, Fault.OURS, False, detail)


@both_loops
def test_the_next_address_is_tried_through_the_proxy(run):
    refuse = [ReadRequest(), Send(b"HTTP/1.1 502 Bad\r\n\r\n"), Fin()]
    with ScriptedServer(SERVE) as server, ScriptedServer(refuse, [ReadRequest(), Tunnel()]) as proxy:
        at = endpoint(server.port, "a.example", guard=allow, proxy=Proxy("127.0.0.1", proxy.port))
        seen = run(one(request(at), resolver=Names(a_example=["::1", "127.0.0.1"])))
    assert isinstance(seen, Response)
    assert len(server.requests) == 1
    first_lines = [bytes(peer.received).split(b"\r\n")[0] for peer in proxy.peers]
    assert first_lines == [
        b"CONNECT [::1]:%d HTTP/1.1" % server.port,
        b"CONNECT 127.0.0.1:%d HTTP/1.1" % server.port,
    ]


def test_the_environment_names_no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    with ScriptedServer(SERVE) as server:
        assert isinstance(asyncio.run(one(request(endpoint(server.port)))), Response)
