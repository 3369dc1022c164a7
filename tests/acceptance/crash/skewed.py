"""The scenario on a host whose clock is wrong: ``python -m tests.acceptance.crash.skewed SECONDS ROLE FOLDER [SLOTS]``.

Only what the handlers log about themselves keeps the true time: the logs are the observer's.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

_true_ns, _true = time.time_ns, time.time


def main() -> None:
    skew_s = int(sys.argv.pop(1))
    time.time_ns = lambda: _true_ns() + skew_s * 1_000_000_000
    time.time = lambda: _true() + skew_s
    from tests.acceptance.crash import scenario

    from redrive.testing import evidence

    vars(evidence)["time"] = SimpleNamespace(time_ns=_true_ns)
    scenario.main()


if __name__ == "__main__":
    main()
