"""``python -m datastore``: ingest, stats, lookup, purge, export, import, bench."""

import signal
import sys

from datastore.commands import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is learned is marked as learned
    sys.exit(main())
