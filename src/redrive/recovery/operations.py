"""What an operator asks of the ledger, and the decisions an operator takes on single deliveries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from redrive.domain.delivery import Disposition
from redrive.domain.identity import from_text
from redrive.domain.values import check_label, check_reason
from redrive.errors import Conflict, InvalidInput, NotFound
from redrive.ledger import registry
from redrive.ledger import timeline as timelines
from redrive.ledger.base import Ledger
from redrive.ledger.records import AttemptView, DeadCount, DeadLetterView, DeliveryView, StatusView, TimelineEntry
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

if TYPE_CHECKING:
    from redrive.ledger.filters import DeadFilter, DeliveryFilter
    from redrive.ledger.fleet import DueView, Envelopes, ListedWorker
    from redrive.ledger.retention import Purged, RetentionRules, RetentionView
    from redrive.ledger.search import Page
    from redrive.ledger.verify import ClockRepair, Report

PAGE = 50
MAX_PAGE = 1000


class Operations:
    """Reads never block work, and work never blocks reads. Methods block; from a coroutine use ``to_thread``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def search(
        self, filters: DeliveryFilter | None = None, *, after: str | None = None, limit: int = PAGE
    ) -> Page[DeliveryView]:
        """Deliveries, newest first; ``Page.next`` is the cursor of the page after."""
        from redrive.ledger import search
        from redrive.ledger.filters import DeliveryFilter

        chosen = filters or DeliveryFilter()
        return self._ledger.read_sync(lambda tx: search.search_deliveries(tx, chosen, after, _bounded(limit)))

    def show(self, delivery_id: str) -> DeliveryView:
        """One delivery as it stands. Raises :class:`NotFound`."""
        return self._ledger.read_sync(lambda tx: timelines.show(tx, timelines.find(tx, delivery_id)))

    def attempts(self, delivery_id: str) -> Sequence[AttemptView]:
        """Every attempt of a delivery, in order."""
        return self._ledger.read_sync(lambda tx: timelines.attempts(tx, timelines.find(tx, delivery_id)))

    def timeline(self, delivery_id: str) -> Sequence[TimelineEntry]:
        """Everything the ledger knows about one delivery, in order of time."""
        return self._ledger.read_sync(lambda tx: timelines.timeline(tx, timelines.find(tx, delivery_id)))

    def payload(self, delivery_id: str) -> tuple[str, bytes]:
        """Content type and bytes of a delivery's payload: only where a person asks for exactly this."""

        def query(tx: Tx) -> tuple[str, bytes]:
            seq = timelines.find(tx, delivery_id)
            timelines.show(tx, seq)  # raises where only the identity is kept
            content_type, body = tx.rows(sql("payload"), (seq,))[0]
            return content_type, body

        return self._ledger.read_sync(query)

    def cancel(self, delivery_id: str, *, reason: str, actor: str = "library") -> bool:
        """Cancel a delivery. True: it is cancelled. False: it is being attempted; the request is recorded.

        A requested cancellation takes effect when the attempt ends, unless that attempt succeeds: ``delivered`` wins.
        Raises :class:`Conflict` for a delivery that has already ended, and :class:`NotFound`.
        """
        check_reason(reason)
        check_label(actor, "actor")
        raw = from_text("dlv", delivery_id)

        def operation(tx: Tx, now: int) -> bool:
            found = tx.rows(sql("identity_find"), (raw,))
            if not found:
                raise NotFound(f"no delivery {delivery_id}", param="id", hint="see: redrive delivery list")
            seq = found[0][0]
            standing = tx.rows(sql("standing"), (seq,))
            if not standing:
                raise NotFound(
                    f"delivery {delivery_id} is no longer on the ledger", param="id", hint=timelines.TOMBSTONE
                )
            disposition, generation, fence = standing[0]
            if tx.run(sql("cancel_waiting"), (seq,)):
                entry = (seq, now, "cancelled", generation, fence, None, actor, reason)
                tx.run(sql("transition_insert"), entry)
                return True
            if tx.run(sql("cancel_request"), (seq,)):
                entry = (seq, now, "cancel_requested", generation, fence, None, actor, reason)
                tx.run(sql("transition_insert"), entry)
                return False
            if disposition == Disposition.LEASED:
                return False  # asked for before
            raise Conflict(
                f"delivery {delivery_id} has already ended as {Disposition(disposition).label}",
                param="id",
                hint="terminal is final; nothing was changed",
            )

        return self._ledger.transact_sync(operation, "operator")

    def dead(
        self, filters: DeadFilter | None = None, *, after: str | None = None, limit: int = PAGE
    ) -> Page[DeadLetterView]:
        """Open dead letters, newest first."""
        from redrive.ledger import search
        from redrive.ledger.filters import DeadFilter

        chosen = filters or DeadFilter()
        return self._ledger.read_sync(lambda tx: search.search_dead(tx, chosen, after, _bounded(limit)))

    def dead_counts(self, filters: DeadFilter | None = None) -> Sequence[DeadCount]:
        """Open dead letters counted by destination x cause x category, by the same predicate as the list."""
        from redrive.ledger import search
        from redrive.ledger.filters import DeadFilter

        chosen = filters or DeadFilter()
        return self._ledger.read_sync(lambda tx: search.count_dead(tx, chosen))

    def destination_names(self) -> dict[str, str]:
        """``dst_`` IDs to names, for people."""
        rows = self._ledger.read_sync(lambda tx: registry.listed(tx, None))
        return {row.destination_id: row.name for row in rows}

    def status(self) -> StatusView:
        """What the ledger holds, what is due, and what is in the way."""
        from redrive.ledger.status import status

        now = self._ledger.estimate()
        return self._ledger.read_sync(lambda tx: status(tx, now))

    def due(self) -> DueView:
        """What is due now and when the next will be: one cheap statement, for whoever scales workers."""
        from redrive.ledger import fleet

        now = self._ledger.estimate()
        return self._ledger.read_sync(lambda tx: fleet.due(tx, now))

    def workers(self) -> Sequence[ListedWorker]:
        """The workers that have not said that they stopped, newest first; those not seen lately are marked."""
        from redrive.ledger import fleet

        now = self._ledger.estimate()
        return self._ledger.read_sync(lambda tx: fleet.workers(tx, now))

    def envelopes(self) -> Envelopes:
        """Live deliveries by handler, envelope version and policy version, and who decodes them.

        An old decoder may go once nothing live is listed for it, and no dead letter that it reads is to be redriven.
        """
        from redrive.ledger import fleet

        now = self._ledger.estimate()
        return self._ledger.read_sync(lambda tx: fleet.envelopes(tx, now))

    def retention(self) -> RetentionView:
        """How far retention has come."""
        from redrive.ledger.retention import view

        return self._ledger.read_sync(view)

    def purge(self, rules: RetentionRules, *, actor: str, limit: int | None = None, dry_run: bool = False) -> Purged:
        """Take what is past its time by ``rules``, ``limit`` deliveries at most; with ``dry_run`` only count them."""
        from redrive.ledger.purge import purge

        return purge(self._ledger, rules, actor=actor, limit=limit, dry_run=dry_run)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Report:
        """Fold the whole ledger and compare it with every delivery's state; safe on a live ledger."""
        from redrive.ledger.verify import verify

        return verify(self._ledger, progress)

    def repair_clock(self, *, actor: str, reason: str | None = None) -> ClockRepair:
        """Set ledger time back to this host's clock, after a wrong clock had pushed it ahead; says what was done.

        Raises :class:`Conflict` while a worker runs on this host: it would bring the old time back.
        """
        from redrive.ledger.verify import repair_clock

        return repair_clock(self._ledger, actor, reason)


def _bounded(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"a page holds 1 to {MAX_PAGE} items", param="limit")
    return limit
