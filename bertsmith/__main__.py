"""`python -m bertsmith` and the installed command `bertsmith`."""

import sys

from bertsmith.cli.app import main


def run() -> None:
    sys.exit(main())


if __name__ == "__main__":
    run()
