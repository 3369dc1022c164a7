"""Every error redrive raises on purpose, in one tree.

::

    RedriveError
    ├── InvalidInput              what the caller said cannot be accepted; nothing was changed
    │   ├── ConfigError           a setting is unknown, obsolete or out of range
    │   ├── PayloadInvalid        a payload that is not valid JSON, or not what its schema allows
    │   ├── PayloadTooLarge       a payload over the limit
    │   ├── UnknownHandler        enqueue for a handler that this application does not have
    │   └── ForbiddenAddress      a destination that the address guard refuses
    ├── Conflict                  the request contradicts what is already recorded
    ├── NotFound                  nothing by that name or ID
    └── LedgerError               the ledger cannot serve the request
        ├── NotALedger            the file or database is not a redrive ledger
        ├── LedgerVersion         the ledger's schema is older or newer than this release can use
        ├── EnvironmentMismatch   the ledger belongs to another environment
        ├── LedgerReadOnly        the ledger cannot be written
        ├── LedgerBusy            another process held the ledger for longer than the wait
        ├── LedgerUnavailable     the ledger's server cannot be reached now
        ├── LedgerFull            no space left for the ledger
        └── LedgerCorrupt         the ledger's contents contradict themselves

Each error has a stable ``code`` for programs, an ``exit_status`` for the command line and an
``http_status`` for the API. ``param`` names the offending input, ``hint`` says what to do.
"""

from __future__ import annotations

from typing import ClassVar


class RedriveError(Exception):
    """Base of every error that redrive raises on purpose.

    ``str(error)`` says what is wrong and where; ``hint``, when present, says what to do about it.
    No message ever contains a secret, a payload or a response body.
    """

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint

    def as_dict(self) -> dict[str, str | None]:
        """The error as the API and ``-o json`` print it."""
        return {"code": self.code, "message": self.message, "param": self.param, "hint": self.hint}


class InvalidInput(RedriveError):
    """What the caller said cannot be accepted. Nothing was changed."""

    code = "invalid_input"
    exit_status = 2
    http_status = 422


class ConfigError(InvalidInput):
    """A setting is unknown, obsolete, malformed or out of range."""

    code = "config"


class PayloadInvalid(InvalidInput):
    """A payload is not valid JSON, or not what its schema allows."""

    code = "payload_invalid"


class PayloadTooLarge(InvalidInput):
    """A payload is over the limit."""

    code = "payload_too_large"
    http_status = 413


class UnknownHandler(InvalidInput):
    """A delivery was enqueued for a handler that this application does not have."""

    code = "unknown_handler"


class ForbiddenAddress(InvalidInput):
    """A destination's URL or address is one that the address guard refuses."""

    code = "forbidden_address"


class Conflict(RedriveError):
    """The request contradicts what is already recorded (for example, the same key with another payload)."""

    code = "conflict"
    exit_status = 6
    http_status = 409


class NotFound(RedriveError):
    """Nothing by that name or ID."""

    code = "not_found"
    http_status = 404


class LedgerError(RedriveError):
    """The ledger cannot serve the request."""

    code = "ledger"
    http_status = 503


class NotALedger(LedgerError):
    """The file or database exists and is not a redrive ledger."""

    code = "not_a_ledger"


class LedgerVersion(LedgerError):
    """The ledger's schema is older (migrate it) or newer (upgrade redrive) than this release can use."""

    code = "ledger_version"


class EnvironmentMismatch(LedgerError):
    """The ledger is stamped with another environment's name."""

    code = "environment_mismatch"
    exit_status = 4
    http_status = 403


class LedgerReadOnly(LedgerError):
    """The ledger cannot be written by this process."""

    code = "ledger_read_only"


class LedgerBusy(LedgerError):
    """Another process held the ledger's write lock for longer than the wait. Trying again is safe."""

    code = "ledger_busy"


class LedgerUnavailable(LedgerError):
    """The ledger's server cannot be reached, or turns connections away. Trying again is safe."""

    code = "ledger_unavailable"


class LedgerFull(LedgerError):
    """No space is left for the ledger. Nothing was half-written."""

    code = "ledger_full"


class LedgerCorrupt(LedgerError):
    """The ledger's contents contradict themselves."""

    code = "ledger_corrupt"
