"""Errors meant for the user: each carries the exit code that the command line ends with."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import ClassVar

# A password before the last "@"; a port, which ends in a "/", is none.
_PASSWORD = re.compile(r"://[^@:/\s]*:(?!\d+/)\S*@")
# A signature or key among an address's options, as stores' own messages show them.
_SECRET_OPTION = re.compile(r"([?&](?:sig|\w*(?:secret|password|token|access_key)\w*)=)[^&\s'\"]+")


def masked(text: str) -> str:
    """A text with the passwords and signatures of addresses in it taken out.

    >>> masked("http://me:x@y@head:8265, https://a.net/box?sv=1&sig=x, hdfs://nn:8020/user/a@b")
    'http://***@head:8265, https://a.net/box?sv=1&sig=***, hdfs://nn:8020/user/a@b'
    """
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub("://***@", text))


class SequifierRayError(ValueError):
    """Something the user can mend; the text says what is wrong and what to do, with passwords in addresses
    masked."""

    exit_code: ClassVar[int] = 5
    everywhere: bool = False
    """Whether all ranks raise it alike, so that rank 0 alone need tell it."""

    def __init__(self, text: str) -> None:
        super().__init__(masked(text))

    def on_every_rank(self) -> SequifierRayError:
        """The same error, marked as raised by all ranks."""
        self.everywhere = True
        return self


class ConfigError(SequifierRayError):
    """Usage or configuration (exit code 2)."""

    exit_code = 2


class DataError(SequifierRayError):
    """Input tables, shards or metadata (exit code 3)."""

    exit_code = 3


class ClusterError(SequifierRayError):
    """Cluster, resources or process start (exit code 4)."""

    exit_code = 4


class TrainingError(SequifierRayError):
    """Training itself failed (exit code 5)."""

    exit_code = 5


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names closest to a mistyped one, as the end of a sentence; empty if none is close.

    >>> nearest("batchsize", ["batch_size", "seed"])
    ' (did you mean "batch_size"?)'
    """
    by_folded = {k.casefold(): k for k in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.6)
    if not close:
        return ""
    return " (did you mean " + " or ".join(f'"{by_folded[c]}"' for c in close) + "?)"
