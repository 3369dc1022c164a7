"""``make demo``: deliver, fail, crash and recover against a real receiver, then prove what happened.

    python examples/demo/run.py                  in a temporary folder
    python examples/demo/run.py --keep FOLDER    in that folder, which is kept
    python examples/demo/run.py --check FOLDER   only the cross-check, on a kept folder

Exits 0 only if every line of the cross-check is as promised.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import show
from evidence import LEDGER, PRODUCER, CrossCheck, Evidence, Kill
from scenario import ANSWERS, INVOICES, LEASE_S, ORDERS, REPEATS, SLOW_S, TENANT, application, events, register
from scenario import worker_environment as environment

from redrive import Conflict, Redrive
from redrive.domain.identity import event_id, to_text
from redrive.testing.evidence import ProducerLog
from redrive.testing.receiver import Receiver, Seen
from redrive.webhooks.signing import generate_secret

LIMIT_S = 55.0
WORKER = Path(__file__).with_name("worker.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="deliver, fail, crash and recover; then prove what happened")
    parser.add_argument("--keep", nargs="?", const="", metavar="FOLDER", help="keep the ledger and the logs")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="only cross-check what --keep kept")
    options = parser.parse_args()
    if options.check is not None:
        if not (options.check / LEDGER).is_file():
            parser.error(f"{options.check} holds no {LEDGER}")
        return finish(CrossCheck.of(options.check))
    if options.keep is None:
        with tempfile.TemporaryDirectory(prefix="redrive-demo-") as temporary:
            return demo(Path(temporary))[0]
    folder = Path(options.keep or tempfile.mkdtemp(prefix="redrive-demo-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    status, example = demo(folder)
    show.look_further(folder, example)
    return status


def demo(folder: Path) -> tuple[int, str]:
    """The whole demo; returns the exit status and the delivery whose timeline was shown."""
    begun = time.monotonic()
    secret = generate_secret()
    with Receiver(folder, script=ANSWERS, secrets=[secret]) as receiver, application(folder, receiver.port) as app:
        app.init()
        names = register(app, {path[1:]: receiver.url(path) for path in ANSWERS})
        show.setting(receiver.port)
        publish(app, folder)
        kill = crash(folder, app, receiver, secret)
        if not kill.received:
            raise SystemExit("demo: the worker was killed with nothing in flight")
        show.crashed(kill)
        recover(folder, receiver.port, secret, begun)
        receiver.stop()
        evidence = Evidence.read(app, names, receiver.requests())
        show.outcomes(evidence)
        example = show.timeline(app, evidence)
        show.dead_letters(app, names)
    return finish(CrossCheck.of(folder), time.monotonic() - begun), example


def publish(app: Redrive, folder: Path) -> None:
    """Publish everything, some of it twice, and one event with a payload that changed."""
    batch = events()
    log = ProducerLog(folder / PRODUCER)
    for event in batch:
        log.tried(event=to_text("evt", event_id(TENANT, str(event.event_id))))
    begun = time.monotonic()
    accepted = app.publish_many(batch)
    took = time.monotonic() - begun
    # The producer's own account: what it was told is safe.
    for event, publication in zip(batch, accepted, strict=True):
        log.acknowledged(publication.deliveries, hashlib.sha256(event.payload).hexdigest(), publication.event_id)
    log.close()
    deliveries = sum(len(publication.deliveries) for publication in accepted)
    again = app.publish_many(batch[:REPEATS])
    repeated = sum(not publication.created for publication in again)
    refused = 0
    try:
        app.publish("order.paid", b'{"order": "A-0000", "total_cents": 1}', event_id="order-0", tenant=TENANT)
    except Conflict:
        refused = 1
    show.published(len(batch), deliveries, took, repeated, refused)
    if (len(batch), repeated, refused) != (ORDERS + INVOICES, REPEATS, 1):
        raise SystemExit("demo: deduplication did not work")


def crash(folder: Path, app: Redrive, receiver: Receiver, secret: str) -> Kill:
    """Start a worker, and SIGKILL it when it is in the middle of things."""
    worker = start(folder, receiver.port, secret)
    try:
        seen = wait_for_moment(worker, receiver)
    finally:
        worker.kill()
        worker.wait()
    return Kill.read(app, worker.pid, seen, receiver.requests())


def wait_for_moment(worker: subprocess.Popen[bytes], receiver: Receiver) -> int:
    """Wait until most events were tried once, and retries have just been received and not yet answered."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and worker.poll() is None:
        seen = receiver.requests()
        if len(seen) >= ORDERS + ORDERS // 2 and retrying(seen):
            return len(seen)
        time.sleep(0.01)
    raise SystemExit("demo: the worker never got into the middle of its work")


def retrying(seen: list[Seen]) -> bool:
    since = time.time_ns() // 1000 - int(SLOW_S / 2 * 1e6)
    recent = [request for request in seen[-100:] if request["at_us"] > since and request["path"] == "/flaky"]
    return any(request["n"] > 1 and request["answer"] == 200 for request in recent)


def recover(folder: Path, port: int, secret: str, begun: float) -> None:
    """Start another worker and let it drain: retries, expired leases and all."""
    started = time.monotonic()
    worker = start(folder, port, secret)
    try:
        with show.working(f"worker {worker.pid} drains; leases of the dead one run out after {LEASE_S:g} s"):
            status = worker.wait(LIMIT_S - (started - begun))
    except subprocess.TimeoutExpired:
        raise SystemExit("demo: the second worker did not finish in time") from None
    finally:
        worker.kill()
        worker.wait()
    if status != 0:
        raise SystemExit(f"demo: the second worker failed with status {status}")
    show.recovered(worker.pid, time.monotonic() - started)


def start(folder: Path, port: int, secret: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(WORKER), str(folder), str(port)], env=environment(secret))


def finish(check: CrossCheck, took: float | None = None) -> int:
    show.cross_check(check, took)
    return 0 if check.ok else 1


if __name__ == "__main__":
    sys.exit(main())
