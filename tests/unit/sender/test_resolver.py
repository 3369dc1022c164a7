"""Look-ups are shared, bounded, and one that never answers stalls nobody else."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from redrive.webhooks.sender.resolver import ResolverBusy, SystemResolver, literal_address, lookup_name


class Names:
    """A getaddrinfo whose answers are released one by one."""

    def __init__(self, *stuck: str) -> None:
        self.calls: list[str] = []
        self.stuck = {name: threading.Event() for name in stuck}

    def __call__(self, host: str, port: int) -> list[str]:
        self.calls.append(host)
        if host in self.stuck:
            assert self.stuck[host].wait(10)
        if host == "missing":
            raise socket.gaierror(socket.EAI_NONAME, "x")
        if host == "odd":
            raise UnicodeError
        return ["192.0.2.1"]

    def release(self) -> None:
        for event in self.stuck.values():
            event.set()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ("::ffff:7f00:1", "::ffff:127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("a.example", None),
        ("localhost", None),
        ("1.2.3.4.5", None),
    ],
)
def test_o67_odd_spellings_are_what_they_mean(host, address):
    assert literal_address(host) == address


@pytest.mark.parametrize(
    ("host", "asked"),
    [("a.example", "a.example."), ("a.example.", "a.example."), ("localhost", "localhost"), ("db", "db")],
)
def test_no_search_domain_is_tried_for_a_dotted_name(host, asked):
    assert lookup_name(host) == asked


def test_concurrent_askers_share_one_look_up():
    async def main() -> None:
        names = Names("slow")
        resolver = SystemResolver(getaddrinfo=names)
        asking = [asyncio.create_task(resolver.resolve("slow", 80)) for _ in range(50)]
        await asyncio.sleep(0)
        names.release()
        answers = await asyncio.gather(*asking)
        assert answers == [["192.0.2.1"]] * 50
        assert answers[0] is not answers[1]  # nobody can spoil another's list
        assert names.calls == ["slow"]

    asyncio.run(main())


def test_a_black_hole_takes_two_threads_and_others_go_on():
    async def main() -> None:
        names = Names("hole")
        resolver = SystemResolver(max_lookups=8, patience_s=0.0, getaddrinfo=names)
        waiting = []
        for _ in range(20):
            waiting.append(asyncio.create_task(resolver.resolve("hole", 80)))
            await asyncio.sleep(0.001)
        for number in range(20):
            assert await asyncio.wait_for(resolver.resolve(f"host{number}", 80), 5) == ["192.0.2.1"]
        assert names.calls.count("hole") == 2
        names.release()
        assert await asyncio.gather(*waiting) == [["192.0.2.1"]] * 20

    asyncio.run(main())


def test_a_look_up_that_is_not_stale_has_no_second():
    async def main() -> None:
        names = Names("slow")
        resolver = SystemResolver(patience_s=60.0, getaddrinfo=names)
        one = asyncio.create_task(resolver.resolve("slow", 80))
        await asyncio.sleep(0.01)
        two = asyncio.create_task(resolver.resolve("slow", 80))
        await asyncio.sleep(0.01)
        names.release()
        await asyncio.gather(one, two)
        assert names.calls == ["slow"]

    asyncio.run(main())


def test_look_ups_are_bounded_in_all():
    async def main() -> None:
        names = Names("a", "b", "c")
        resolver = SystemResolver(max_lookups=2, getaddrinfo=names)
        waiting = [asyncio.create_task(resolver.resolve(host, 80)) for host in ("a", "b")]
        await asyncio.sleep(0)
        with pytest.raises(ResolverBusy):
            await resolver.resolve("c", 80)
        names.release()
        await asyncio.gather(*waiting)
        assert await resolver.resolve("c", 80) == ["192.0.2.1"]

    asyncio.run(main())


def test_a_cancelled_asker_leaves_the_others_their_answer():
    async def main() -> None:
        names = Names("slow")
        resolver = SystemResolver(getaddrinfo=names)
        one, two = (asyncio.create_task(resolver.resolve("slow", 80)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.sleep(0)
        names.release()
        assert await two == ["192.0.2.1"]
        assert one.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["missing", "odd"])
def test_what_cannot_be_found_is_an_error_for_each_asker(host):
    async def main() -> None:
        resolver = SystemResolver(getaddrinfo=Names())
        results = await asyncio.gather(*[resolver.resolve(host, 80) for _ in range(3)], return_exceptions=True)
        assert [type(one) for one in results] == [socket.gaierror] * 3

    asyncio.run(main())


def test_the_real_thing_knows_localhost():
    answer = asyncio.run(SystemResolver().resolve("localhost", 80))
    assert "127.0.0.1" in answer or "::1" in answer
    assert len(answer) == len(set(answer))
