"""One worker process of the demo: works until nothing is left, or until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from scenario import application

if __name__ == "__main__":
    with application(Path(sys.argv[1]), int(sys.argv[2])) as app:
        app.run(until_idle=True)
