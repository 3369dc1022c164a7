"""Source files stay small: one use-case, one file.

Over 400 lines a file is named as due for splitting; over 450 the check fails.
"""

from __future__ import annotations

import sys

from tree import project_files, report, root_argument, text_lines

ADVISED = 400
LIMIT = 450


def main() -> int:
    """Exit status: 1 when a file under src is over the limit."""
    root = root_argument(__doc__)
    problems: list[str] = []
    sources = [path for path in project_files(root) if path.is_relative_to(root / "src")]
    for path in sources:
        lines = len(text_lines(path))
        if lines > LIMIT:
            problems.append(f"{path.relative_to(root)} has {lines} lines; the limit is {LIMIT}")
        elif lines > ADVISED:
            print(f"lines: note: {path.relative_to(root)} has {lines} lines; split it before {LIMIT}")
    if not sources:
        problems.append("no files under src: nothing was checked")
    return report("lines", problems, f"{len(sources)} files under src")


if __name__ == "__main__":
    sys.exit(main())
