"""The program: `fedpace`, or `python -m fedpace`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it quietly even while it is being imported."""
    try:
        from fedpace.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
