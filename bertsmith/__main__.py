"""`python -m bertsmith` and the installed command `bertsmith`."""

import sys


def run() -> None:
    try:
        from bertsmith.cli.app import main
    except KeyboardInterrupt:  # the tenth of a second before anybody is there to explain it
        sys.exit(130)
    sys.exit(main())


if __name__ == "__main__":
    run()
