"""The process of a command: ``sequifier-ray``, or ``python -m sequifier_ray`` as torchrun starts it."""

import sys
from typing import NoReturn

from sequifier_ray.cli import main


def run() -> NoReturn:
    """Run the command that this process was started with, and end it."""
    code = main()
    if "torch" in sys.modules:
        from sequifier_ray.launch.ranks import leave

        # All is written, and taking torch's modules apart takes half a second.
        leave(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
