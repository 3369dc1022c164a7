"""The oracle receiver: evidence first, then the answer that its script says."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive.testing.receiver import Receiver, read_log
from redrive.testing.script import Plan
from redrive.webhooks.signing import Signer, generate_secret

SECRET = generate_secret()
BODY = b'{"n": 1}'


def post(receiver: Receiver, path: str, delivery: str, *, signed: bytes | None = BODY, secret: str = SECRET) -> Any:
    """The status and Retry-After, or the name of what went wrong."""
    now = int(time.time())
    headers = {
        "webhook-id": delivery,
        "webhook-timestamp": str(now),
        "redrive-event-id": "evt_1",
        "redrive-event-type": "order.paid",
        "redrive-attempt": "0.1",
        "redrive-attempt-id": "att_1",
    }
    if signed is not None:
        headers["webhook-signature"] = Signer([secret]).sign(delivery, now, signed)
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=0.5)
    try:
        connection.request("POST", path, BODY, headers)
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader("Retry-After")
    except (OSError, http.client.HTTPException) as exc:
        return type(exc).__name__
    finally:
        connection.close()


def test_answers_follow_the_script_and_the_log_says_what_was_seen(tmp_path: Path) -> None:
    answers = [
        {"status": 503},
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"hang_s": 30, "effect": True},
        {"rst": True},
        {"close": True},
        {"status": 201},
    ]
    with Receiver(tmp_path, script={"/flaky": {"answers": answers}}, secrets=[SECRET]) as receiver:
        got = [post(receiver, "/flaky", "dlv_a") for _ in range(7)]
        assert got == [
            (503, None),
            (429, "1"),
            "TimeoutError",
            "ConnectionResetError",
            "RemoteDisconnected",
            (201, None),
            (201, None),
        ]
        assert post(receiver, "/flaky", "dlv_b") == (503, None)
        assert post(receiver, "/other", "dlv_a") == (200, None)
        seen = receiver.requests()
    assert [request["answer"] for request in seen] == [503, 429, "hang", "rst", "close", 201, 201, 503, 200]
    assert [request["effect"] for request in seen] == [False, False, True, False, False, True, True, False, True]
    assert [request["n"] for request in seen] == [1, 2, 3, 4, 5, 6, 7, 1, 1]
    first = seen[0]
    assert (first["delivery"], first["event"], first["event_type"]) == ("dlv_a", "evt_1", "order.paid")
    assert (first["attempt"], first["attempt_id"], first["bytes"]) == ("0.1", "att_1", len(BODY))
    assert first["body_sha256"] == hashlib.sha256(BODY).hexdigest()
    assert abs(first["at_us"] / 1e6 - time.time()) < 60
    assert [request["at_us"] for request in seen] == sorted(request["at_us"] for request in seen)


def test_the_line_is_in_the_file_when_the_answer_arrives(tmp_path: Path) -> None:
    with Receiver(tmp_path) as receiver:
        for n in range(1, 51):
            post(receiver, "/", "dlv_a")
            assert len(receiver.requests()) == n


def test_what_the_kernel_was_told_comes_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fsync that covers a line returns before that line's request is answered."""
    calls = tmp_path / "calls"
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import os\n"
        "real = os.fsync\n"
        "def fsync(fd):\n"
        "    real(fd)\n"
        f"    with open({str(calls)!r}, 'a') as f: f.write(f'{{os.fstat(fd).st_size}}\\n')\n"
        "os.fsync = fsync\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with Receiver(tmp_path / "r") as receiver:
        for _ in range(5):
            post(receiver, "/", "dlv_a")
            synced = int(calls.read_text().splitlines()[-1])
            assert synced == receiver.log.stat().st_size


def test_signatures_are_judged(tmp_path: Path) -> None:
    with Receiver(tmp_path / "a", secrets=[generate_secret(), SECRET]) as receiver:
        post(receiver, "/", "dlv_a")
        post(receiver, "/", "dlv_a", signed=BODY + b" ")
        post(receiver, "/", "dlv_a", secret=generate_secret())
        post(receiver, "/", "dlv_a", signed=None)
        assert [request["signature"] for request in receiver.requests()] == ["ok", "bad", "bad", "missing"]
    with Receiver(tmp_path / "b") as receiver:
        post(receiver, "/", "dlv_a")
        assert [request["signature"] for request in receiver.requests()] == ["unchecked"]


def test_shares_are_of_deliveries_and_stable() -> None:
    script = {"/": {"share": {"0.3": [{"status": 500}, {"status": 200}], "0.2": [{"close": True}]}}}
    plan = Plan(script)
    first = [json.dumps(plan.answer("/", f"dlv_{i}", 1)) for i in range(4000)]
    counts = Counter(first)
    assert abs(counts['{"status": 500}'] / 4000 - 0.3) < 0.03
    assert abs(counts['{"close": true}'] / 4000 - 0.2) < 0.03
    assert first == [json.dumps(Plan(script).answer("/", f"dlv_{i}", 1)) for i in range(4000)]
    chosen = f"dlv_{first.index(json.dumps({'status': 500}))}"
    assert [plan.answer("/", chosen, n)["status"] for n in (1, 2, 3)] == [500, 200, 200]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"answers": []},
        {"answers": [{}]},
        {"answers": [{"status": 200, "rst": True}]},
        {"answers": [{"status": 99}]},
        {"answers": [{"stats": 200}]},
        {"answers": [{"rst": True, "delay_s": 1}]},
        {"answers": [{"status": 200}], "share": {}},
        {"share": {"0.7": [{"status": 200}], "0.6": [{"status": 500}]}},
        {"share": {"1.5": [{"status": 200}]}},
    ],
)
def test_a_script_that_cannot_work_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="/hook"):
        Plan({"/hook": entry})


def test_started_again_it_goes_on_counting_after_an_unfinished_line(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, script={"/": {"answers": [{"status": 500}, {"status": 200}]}})
    with receiver:
        assert post(receiver, "/", "dlv_a") == (500, None)
        port = receiver.port
        assert receiver.pid is not None
        os.kill(receiver.pid, signal.SIGKILL)
        receiver.stop()
        with receiver.log.open("ab") as log:
            log.write(b'{"at_us": 1, "path"')
        assert len(receiver.requests()) == 1
        receiver.start()
        assert receiver.port == port
        assert post(receiver, "/", "dlv_a") == (200, None)
        assert [request["n"] for request in read_log(receiver.log)] == [1, 2]


def test_it_stops_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from redrive.testing.receiver import Receiver\n"
        f"receiver = Receiver({str(tmp_path)!r}); receiver.start()\n"
        "print(receiver.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and is_running(pid):
        time.sleep(0.01)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_requests_that_could_be_read_in_two_ways_are_refused_and_not_recorded(tmp_path: Path) -> None:
    bad = {
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}": 400,
        b"POST / HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}": 400,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n": 411,
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n": 413,
        b"POST / HTTP/1.1\r\nx: " + b"y" * 70_000: 431,
        b"nonsense\r\n\r\n": 400,
    }

    async def ask(port: int, data: bytes) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        line = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        return int(line.split()[1])

    with Receiver(tmp_path) as receiver:
        assert [asyncio.run(ask(receiver.port, data)) for data in bad] == list(bad.values())
        assert receiver.requests() == []


def test_it_keeps_up_with_two_thousand_requests_a_second(tmp_path: Path) -> None:
    total, connections = 4000, 50
    now = int(time.time())
    signer = Signer([SECRET])

    async def client(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in range(total // connections):
            name = f"dlv_{number}_{i}"
            head = (
                f"POST / HTTP/1.1\r\nHost: x\r\nwebhook-id: {name}\r\nwebhook-timestamp: {now}\r\n"
                f"webhook-signature: {signer.sign(name, now, BODY)}\r\nContent-Length: {len(BODY)}\r\n\r\n"
            )
            writer.write(head.encode() + BODY)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def everything(port: int) -> float:
        begun = time.monotonic()
        await asyncio.gather(*(client(port, number) for number in range(connections)))
        return total / (time.monotonic() - begun)

    with Receiver(tmp_path, secrets=[SECRET]) as receiver:
        rate = asyncio.run(everything(receiver.port))
        seen = receiver.requests()
    assert rate > 2000
    assert len(seen) == total
    assert {request["signature"] for request in seen} == {"ok"}
