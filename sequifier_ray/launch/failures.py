"""How one rank's exception reaches the person who started the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from sequifier_ray.errors import ClusterError, ConfigError, DataError, SequifierRayError, TrainingError
from sequifier_ray.train.worker import is_peer_loss

_KINDS: dict[str, type[SequifierRayError]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, ClusterError, TrainingError)
}


@dataclass(frozen=True)
class Failure:
    """One rank's failure in words. ``is_collateral``: only the echo of another rank's."""

    rank: int
    kind: str
    text: str
    trace: str
    is_collateral: bool

    def raise_again(self) -> NoReturn:
        """Raise it here, as what it was.

        Raises:
            SequifierRayError: always.
        """
        raise self.as_error()

    def as_error(self) -> SequifierRayError:
        """The exception to raise here, with the other process's traceback as its cause."""
        error = _KINDS.get(self.kind, TrainingError)(self.text)
        error.__cause__ = RemoteTraceback(self.rank, self.trace)
        return error


class RemoteTraceback(Exception):
    """Carries the text of another process's traceback for --verbose."""

    def __init__(self, rank: int, trace: str) -> None:
        super().__init__(f"on rank {rank}:\n{trace}")


def describe(error: BaseException, rank: int, trace: str) -> Failure:
    """A failure that can travel between processes."""
    if isinstance(error, SequifierRayError):
        return Failure(rank, type(error).__name__, str(error), trace, False)
    if is_peer_loss(error):
        # What torch says of it would only hide whose failure it is.
        return Failure(rank, "TrainingError", f"rank {rank} lost its connection to another rank", trace, True)
    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    words = f"rank {rank} failed: {type(error).__name__}: {first}. Run again with --verbose for the traceback"
    return Failure(rank, "TrainingError", words, trace, False)
