"""``python -m racer``: generate, bench, run."""

import os
import signal
import sys


def _main() -> int:
    # Threads that spin for long keep the processor from whom they wait for, once another program wants it too: steps
    # then take ten times as long (docs/log.md). OpenMP reads this when torch loads it.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is finished is written
    try:
        from racer.commands import main  # interrupting this must not show a traceback either
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(_main())
