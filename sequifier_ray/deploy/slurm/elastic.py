"""torchrun, as ``torchrun`` itself starts it, but ending with its ranks' exit code instead of always 1."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

EXIT_STOPPED = 75
_TRAINING_FAILED, _CLUSTER_FAILED = 5, 4


def main(words: Sequence[str]) -> int:
    """Run torchrun with its words: 0, the exit code of the ranks, 4 if it could not start them."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args
    from torch.distributed.run import run as run_agents

    # torch logs in its handler of SIGTERM; in the midst of another line that prints a traceback.
    logging.raiseExceptions = False
    # The ranks tell their errors themselves; a tally of exit codes with tracebacks would bury them.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        run_agents(parse_args(list(words)))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            if failure.exitcode < 0:
                sys.stderr.write(
                    f"error: rank {rank} was killed by signal {-failure.exitcode}; 9 is often the kernel's "
                    "for lack of memory\n"
                )
        return exit_code([failure.exitcode for failure in error.failures.values()])
    except SignalException:
        return _TRAINING_FAILED
    except Exception as error:  # noqa: BLE001 - the rendezvous raises many kinds
        sys.stderr.write(f"error: torchrun gave up: {type(error).__name__}: {error}\n")
        return _CLUSTER_FAILED
    return 0


def exit_code(codes: Sequence[int]) -> int:
    """One exit code for several that are not 0. A cause has a lower one than its echo on other ranks; 75
    stands only where all stopped on request.

    >>> exit_code([5, 3]), exit_code([75, 75]), exit_code([75, -9])
    (3, 75, 5)
    """
    failures = [_TRAINING_FAILED if code < 0 else code for code in codes if code != EXIT_STOPPED]
    return min(failures) if failures else EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
