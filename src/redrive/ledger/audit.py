"""The audit chain: what people and the engine did to the ledger as a whole.

Each row's digest is SHA-256 over the digest before it and the row's canonical JSON, so that a row changed,
removed or put in later breaks the chain from there on. Triggers refuse UPDATE and DELETE.
"""

from __future__ import annotations

import hashlib
from typing import Final

from redrive.domain.values import canonical_json, check_label, check_reason
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

GENESIS: Final = bytes(32)
"""The digest before the first row's."""

CLOCK_REPAIRED: Final = "clock.repaired"
"""The action of :func:`redrive.ledger.verify.repair_clock`; ``before`` and ``after`` are microseconds UTC."""


def audit_digest(
    prev: bytes,
    at: int,
    actor: str,
    action: str,
    target: str,
    reason: str | None,
    before: str | None,
    after: str | None,
) -> bytes:
    """The 32-byte digest of one row, over the digest before it."""
    row = {
        "at": at,
        "actor": actor,
        "action": action,
        "target": target,
        "reason": reason,
        "before": before,
        "after": after,
    }
    return hashlib.sha256(prev + canonical_json(row)).digest()


def append_audit(
    tx: Tx,
    now: int,
    actor: str,
    action: str,
    target: str,
    reason: str | None = None,
    before: str | None = None,
    after: str | None = None,
) -> bytes:
    """Append one row in the caller's write transaction; returns its digest.

    ``before`` and ``after`` are text (JSON where they are more than a word), without secrets or payloads.
    Raises :class:`~redrive.errors.InvalidInput` for an unprintable actor, action or target, or a bad reason.
    """
    check_label(actor, "actor")
    check_label(action, "action")
    check_label(target, "target")
    if reason is not None:
        check_reason(reason)
    tx.rows(sql("audit_lock"))
    last = tx.rows(sql("audit_last"))
    prev: bytes = last[0][0] if last else GENESIS
    digest = audit_digest(prev, now, actor, action, target, reason, before, after)
    tx.run(sql("audit_insert"), (now, actor, action, target, reason, before, after, digest))
    return digest
