"""The way to a cluster's job service: its address, the token, and errors that say what to look at."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sequifier_ray.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from sequifier_ray.launch.job_client import BoundedClient

_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_TOKEN_REMEDY = "RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH if the cluster wants a token"


def connect(address: str | None) -> BoundedClient:
    """The job service at ``address``, else where the environment says, else of the cluster of this machine.

    Raises:
        ConfigError: it is no address of a dashboard.
        ClusterError: the token cannot be used, or nobody there is Ray's job service.
    """
    _settle_address(address)
    _settle_token()
    from sequifier_ray.launch.job_client import BoundedClient

    remedy = f"check --address (http://head:8265) or RAY_ADDRESS, and {_TOKEN_REMEDY}"
    with telling("reach Ray's job service", remedy):
        return BoundedClient(address)


@contextmanager
def telling(action: str, remedy: str) -> Iterator[None]:
    """Turn what Ray's job client raises into one line that says what to look at."""
    from ray.exceptions import AuthenticationError, RayError
    from requests import JSONDecodeError

    try:
        yield
    except AuthenticationError as error:
        text = f"cannot {action} ({first_line(error.message)}); check {_TOKEN_REMEDY}"
        raise ClusterError(text) from error
    except (KeyError, TypeError, JSONDecodeError) as error:
        raise ClusterError(f"cannot {action} (the answer is not one of Ray's dashboard); {remedy}") from error
    except (RuntimeError, ValueError, OSError, RayError) as error:
        raise ClusterError(
            f"cannot {action} ({first_line(str(error)) or type(error).__name__}); {remedy}"
        ) from error


def first_line(text: str) -> str:
    """The first line of a message; of one with a traceback the last, which names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    if not lines:
        return ""
    return lines[-1 if "Traceback (most recent call last)" in text else 0]


def _settle_address(given: str | None) -> None:
    """Refuse what is no dashboard, which Ray waits for; and let the option win over Ray's variables."""
    named = [("--address", given), *((name, os.environ.get(name)) for name in _ADDRESSES)]
    source, address = next(((source, address) for source, address in named if address), ("", None))
    if address is None:
        return
    if address != "auto" and not re.match(r"https?://[^/:\s]", address):
        host = re.match(r"(?:\w+://)?([\w.-]+)", address)
        raise ConfigError(
            f'{source}: found "{address}"; allowed: the dashboard, such as '
            f"http://{host[1] if host else 'head'}:8265, or auto for the cluster of this machine"
        )
    os.environ[_ADDRESSES[0]] = address


def _settle_token() -> None:
    """Use a token that is at hand, as Ray itself waits to be told; refuse one that cannot be sent."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    token = os.environ.get("RAY_AUTH_TOKEN")
    if not token and "RAY_AUTH_TOKEN_PATH" not in os.environ and not Path(path).exists():
        return
    if os.environ.setdefault("RAY_AUTH_MODE", "token").lower() != "token":
        return
    source = "RAY_AUTH_TOKEN" if token else f"RAY_AUTH_TOKEN_PATH: {path}"
    try:
        token = token or Path(path).read_text(encoding="ascii")
    except UnicodeDecodeError:
        token = "\0"
    except OSError as error:
        raise ClusterError(
            f"{source} cannot be read ({error.strerror}); name the file of the token"
        ) from error
    if not re.fullmatch(r"[!-~]+", token.strip()):
        raise ClusterError(
            f"{source} is no token (one word of letters, digits and signs); get it from the head"
        )
