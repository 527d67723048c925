"""``python -m racer``: generate, bench, run."""

import sys

from racer.commands import main

if __name__ == "__main__":
    sys.exit(main())
