"""``python -m racer``: generate, bench, run."""

import sys


def _main() -> int:
    try:
        from racer.commands import main  # takes seconds: interrupting it must not show a traceback either
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(_main())
