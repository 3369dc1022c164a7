"""``python -m redrive`` is the command ``redrive``."""

from redrive.cli.main import main

if __name__ == "__main__":
    main()
