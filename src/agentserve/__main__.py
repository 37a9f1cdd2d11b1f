"""Process entry point; engine children re-import this module, so it stays empty of work."""

import sys


def main() -> int:
    """Run the command line.

    Returns:
        The process exit status.
    """
    from agentserve.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
