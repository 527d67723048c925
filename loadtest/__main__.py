"""``python -m loadtest``: run, workload, sweep, report, plan."""

import signal
import sys

from loadtest.commands import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was measured is kept
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background ignores this
    sys.exit(main())
