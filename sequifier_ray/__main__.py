"""``python -m sequifier_ray``, as torchrun starts it."""

import sys

from sequifier_ray.cli import main

if __name__ == "__main__":
    sys.exit(main())
