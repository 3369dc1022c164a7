"""Keep-alive: what is reused, what is replaced, and that nothing is ever written twice."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.acceptance.scripted_server import (
    OK,
    Deaf,
    Fin,
    HalfClose,
    ReadRequest,
    Rst,
    ScriptedServer,
    Send,
    Wait,
)
from tests.acceptance.sender_rig import (
    SHORT,
    Failure,
    Fault,
    Phase,
    Response,
    Sender,
    Timeouts,
    allow,
    both_loops,
    endpoint,
    open_files,
    request,
)

from redrive.webhooks.sender.pool import SLOT

SERVE = [ReadRequest(), Send(OK)]


@both_loops
def test_one_connection_serves_many_requests(run):
    async def main() -> None:
        sender = Sender()
        for number in range(5):
            seen = await sender.send(request(endpoint(server.port), b"%d" % number))
            assert isinstance(seen, Response)
        await sender.close()

    with ScriptedServer(SERVE * 5) as server:
        run(main())
    assert server.connections == 1
    assert [one[-1:] for one in server.requests] == [b"0", b"1", b"2", b"3", b"4"]


@both_loops
@pytest.mark.parametrize("end", [Fin(), Rst(), HalfClose(), Send(b"HTTP/1.1 408 R\r\nContent-Length: 0\r\n\r\n")])
@pytest.mark.parametrize("loop_knows", [True, False])
def test_a_connection_that_ended_while_idle_is_replaced_within_the_attempt(run, end, loop_knows):
    ended = threading.Event()

    class Say(Wait):
        def run(self, peer):  # type: ignore[no-untyped-def]
            self.event.set()

    go = threading.Event()

    async def main() -> None:
        sender = Sender()
        first = await sender.send(request(endpoint(server.port), b"first"))
        assert isinstance(first, Response)
        go.set()
        # Blocking here keeps the loop from seeing the end: only a look at the socket can tell.
        assert ended.wait(10)
        if isinstance(end, Fin | Rst):
            assert server.peers[0].closed.wait(10)
        if loop_knows:
            for _ in range(1000):
                if sender.connections == 0:
                    break
                await asyncio.sleep(0.001)
            assert sender.connections == 0
        calls: list[str] = []
        second = await sender.send(request(endpoint(server.port), b"second", on_send=lambda: calls.append("x")))
        assert second == Response(200, ((b"content-length", b"2"),), b"ok")
        assert calls == ["x"]
        assert sender.connections == 1
        await sender.close()

    first_script = (
        [*SERVE, Wait(go), Say(ended), end] if isinstance(end, Fin | Rst) else [*SERVE, Wait(go), end, Say(ended)]
    )
    with ScriptedServer(first_script, SERVE) as server:
        run(main())
    assert [one.rpartition(b"\r\n")[2] for one in server.requests] == [b"first", b"second"]
    assert server.connections == 2


@both_loops
@pytest.mark.parametrize("end", [Fin(), Rst()])
def test_o63_an_end_that_races_with_the_write_is_unknown_and_not_sent_again(run, end):
    async def main() -> None:
        sender = Sender()
        assert isinstance(await sender.send(request(endpoint(server.port))), Response)
        seen = await sender.send(request(endpoint(server.port)))
        assert isinstance(seen, Failure)
        assert (seen.phase, seen.fault, seen.sent) == (Phase.SEND, Fault.LOST, True)
        assert sender.connections == 0
        await sender.close()

    with ScriptedServer([*SERVE, ReadRequest(), end], SERVE) as server:
        run(main())
    assert len(server.requests) == 2
    assert server.connections == 1


@both_loops
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        OK + b"\r\n",
        OK + OK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n" + b"a" * 70,  # over the cap
    ],
)
def test_what_must_not_be_reused_is_not(run, answer):
    async def main() -> None:
        sender = Sender()
        for _ in range(2):
            seen = await sender.send(request(endpoint(server.port), max_response_body=50))
            assert isinstance(seen, Response)
            assert sender.connections == 0
        await sender.close()

    with ScriptedServer([ReadRequest(), Send(answer)]) as server:
        run(main())
    assert server.connections == 2
    assert len(server.requests) == 2


@both_loops
def test_fresh_never_uses_nor_leaves_an_idle_connection(run):
    async def main() -> None:
        sender = Sender()
        for fresh in (False, True, True, False):
            assert isinstance(await sender.send(request(endpoint(server.port), fresh=fresh)), Response)
        assert sender.connections == 1
        await sender.close()

    with ScriptedServer(SERVE * 2) as server:
        run(main())
    assert server.connections == 3
    assert [b"Connection: close\r\n" in one for one in server.requests].count(True) == 2


@both_loops
def test_an_idle_connection_is_closed_in_time(run):
    async def main() -> None:
        sender = Sender(idle_s=0.1)
        await sender.send(request(endpoint(server.port)))
        assert sender.connections == 1
        for _ in range(300):
            if sender.connections == 0:
                break
            await asyncio.sleep(0.01)
        assert sender.connections == 0
        assert server.peers[0].closed.wait(5)  # the receiver saw the end
        assert not sender._pools._pools  # type: ignore[union-attr]  # nothing is kept per endpoint
        await sender.close()

    with ScriptedServer(SERVE) as server:
        run(main())
    assert len(server.requests) == 1


@both_loops
def test_a_connection_has_an_age(run):
    async def main() -> None:
        sender = Sender(max_age_s=0.0)
        for _ in range(2):
            await sender.send(request(endpoint(server.port)))
        await sender.close()

    with ScriptedServer(SERVE * 2) as server:
        run(main())
    assert server.connections == 2


@both_loops
def test_the_warmest_connection_goes_first(run):
    async def main() -> None:
        sender = Sender()
        at = endpoint(server.port)
        await asyncio.gather(*[sender.send(request(at)) for _ in range(3)])
        for _ in range(6):
            await sender.send(request(at))
        await sender.close()

    with ScriptedServer(SERVE * 9) as server:
        run(main())
    assert sorted(len(peer.received) // len(server.requests[0]) for peer in server.peers) == [1, 1, 7]


@both_loops
def test_different_terms_share_no_connection(run):
    async def main() -> None:
        sender = Sender()
        for guard in (lambda address: None, lambda address: None):
            await sender.send(request(endpoint(server.port, guard=guard)))
        await sender.close()

    with ScriptedServer(SERVE) as server:
        run(main())
    assert server.connections == 2


@both_loops
def test_the_bounds_hold_and_waiting_counts_in_the_total(run):
    async def main() -> None:
        sender = Sender(max_per_endpoint=2, max_connections=2)
        long = Timeouts(first_byte=5.0, total=5.0)
        at = endpoint(server.port)
        busy = [asyncio.create_task(sender.send(request(at, timeouts=long))) for _ in range(2)]
        for _ in range(1000):
            if len(server.requests) == 2:
                break
            await asyncio.sleep(0.005)
        seen = await sender.send(request(at, timeouts=SHORT))
        assert seen == Failure(Phase.CONNECT, Fault.TIMEOUT, False, "pool")
        other = await sender.send(request(endpoint(server.port, "localhost"), timeouts=SHORT))
        assert other == Failure(Phase.CONNECT, Fault.TIMEOUT, False, "pool")
        assert sender.connections == 2
        waiting = asyncio.create_task(sender.send(request(at, b"late", timeouts=long)))
        await asyncio.sleep(0)
        release.set()
        assert all(isinstance(one, Response) for one in await asyncio.gather(*busy, waiting))
        await sender.close()

    release = threading.Event()
    with ScriptedServer([ReadRequest(), Wait(release), Send(OK), *SERVE]) as server:
        run(main())
    assert server.connections == 2
    assert len(server.requests) == 3


@both_loops
def test_an_idle_connection_gives_way_to_another_endpoint(run):
    async def main() -> None:
        sender = Sender(max_connections=1)
        for port in (one.port, two.port, one.port):
            assert isinstance(await sender.send(request(endpoint(port), timeouts=SHORT)), Response)
            assert sender.connections == 1
        await sender.close()

    with ScriptedServer(SERVE) as one, ScriptedServer(SERVE) as two:
        run(main())
    assert (one.connections, two.connections) == (2, 1)


@both_loops
def test_a_busy_endpoint_does_not_starve_another(run):
    async def main() -> None:
        sender = Sender(max_connections=2)
        served = asyncio.Event()
        rounds = 0

        async def crowd() -> None:
            nonlocal rounds
            while not served.is_set() and rounds < 10_000:
                rounds += 1
                assert isinstance(await sender.send(request(endpoint(one.port, guard=allow))), Response)

        async def guest() -> None:
            assert isinstance(await sender.send(request(endpoint(two.port))), Response)
            served.set()

        tasks = [asyncio.create_task(crowd()) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.gather(asyncio.create_task(guest()), *tasks)
        assert rounds < 10_000  # first come, first served by connection would never reach the guest
        await sender.close()

    with ScriptedServer(SERVE * 10_020) as one, ScriptedServer(SERVE) as two:
        run(main())
    assert len(two.requests) == 1


@both_loops
def test_cancelling_closes_the_connection_and_frees_the_slot(run):
    async def main() -> None:
        sender = Sender(max_per_endpoint=1)
        task = asyncio.create_task(sender.send(request(endpoint(server.port))))
        for _ in range(1000):
            if server.requests:
                break
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sender.connections == 0
        assert isinstance(await sender.send(request(endpoint(server.port))), Response)
        assert server.peers[0].closed.wait(5)
        await sender.close()

    with ScriptedServer([ReadRequest()], SERVE) as server:
        run(main())
    assert len(server.requests) == 2


@both_loops
def test_o64_ten_thousand_cancelled_sends_leave_every_slot(run):
    async def main() -> None:
        sender = Sender(max_connections=20, max_per_endpoint=10)
        before = open_files()
        at = [endpoint(server.port), endpoint(server.port, "localhost"), endpoint(server.port, "127.1")]
        for wave in range(10):
            tasks = [asyncio.create_task(sender.send(request(at[n % 3]))) for n in range(1_000)]
            for _ in range(wave * 3):  # cancelled in the queue, in the dial, in the exchange
                await asyncio.sleep(0.001)
            for task in tasks if wave % 2 else reversed(tasks):
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [one for one in ended if not isinstance(one, asyncio.CancelledError)] == []
            assert sender.connections == 0
        pools = sender._pools
        assert pools is not None
        assert not pools._pools
        assert not pools._waiting
        slots = [pools.take(pools.pool(at[n % 3]), fresh=True) for n in range(20)]
        assert slots == [SLOT] * 20
        for n in range(20):
            pools.free(pools.pool(at[n % 3]))
        await sender.close()
        await asyncio.sleep(0)
        assert open_files() <= before + server.connections + 8

    with ScriptedServer([Deaf()]) as server:
        run(main())


@both_loops
def test_a_closed_sender_sends_nothing(run):
    async def main() -> None:
        sender = Sender()
        tasks = [asyncio.create_task(sender.send(request(endpoint(server.port)))) for _ in range(2)]
        for _ in range(1000):
            if len(server.requests) == 2:
                break
            await asyncio.sleep(0.005)
        await sender.close()
        for seen in await asyncio.gather(*tasks):
            assert seen == Failure(Phase.SEND, Fault.LOST, True, "shutdown")
        seen = await sender.send(request(endpoint(server.port)))
        assert seen == Failure(Phase.CONNECT, Fault.OURS, False, "closed")
        assert sender.connections == 0

    with ScriptedServer([ReadRequest()]) as server:
        run(main())
    assert len(server.requests) == 2


@both_loops
def test_closing_ends_those_who_wait_for_a_slot(run):
    async def main() -> None:
        sender = Sender(max_connections=1)
        busy = asyncio.create_task(sender.send(request(endpoint(server.port))))
        for _ in range(1000):
            if server.requests:
                break
            await asyncio.sleep(0.005)
        waiting = asyncio.create_task(sender.send(request(endpoint(server.port))))
        await asyncio.sleep(0)
        await sender.close()
        assert (await busy).sent
        assert await waiting == Failure(Phase.CONNECT, Fault.OURS, False, "closed")

    with ScriptedServer([ReadRequest()]) as server:
        run(main())
    assert len(server.requests) == 1
