"""``python -m k8s generate`` writes the generated parts of the manifests; ``check [FOLDER…]`` checks overlays."""

import sys

from k8s.commands import main

if __name__ == "__main__":
    sys.exit(main())
