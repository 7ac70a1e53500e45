"""Plain paths and addresses (``s3://…``): which is which, and the file system behind each."""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sequifier_ray.errors import DataError, masked

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Places that pyarrow reads and writes, besides plain paths.
SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs")
# What says where they are, without being a secret.
ENVIRONMENT = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_EC2_METADATA_DISABLED",
    "CLOUD_STORAGE_EMULATOR_ENDPOINT",
    "GOOGLE_CLOUD_PROJECT",
    "AZURE_STORAGE_SERVICE_ENDPOINT",
)
_AZURE = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SERVICE_ENDPOINT")
_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
# What pyarrow would take from an address, behind "?"; any other "?" belongs to a name.
_OPTION = re.compile(
    r"(scheme|region|location|endpoint_override|project_id|retry_limit_seconds|tenant_id|client_id"
    r"|client_secret|credential_kind|enable_tls|tls_\w+|allow_\w+|(blob|dfs)_storage_\w+)="
)


def is_local(path: str) -> bool:
    """True for a plain path or a ``file://`` URI."""
    return path.startswith("file://") or not _SCHEME.match(path)


def join(base: str, *parts: str) -> str:
    """Parts under a base, normalized; an absolute part or URI replaces what stands before it.

    >>> join("/project", "./data", "x.pt"), join("s3://bucket/run", "logs")
    ('/project/data/x.pt', 's3://bucket/run/logs')
    """
    for part in parts:
        base = part if _SCHEME.match(part) else posixpath.join(base, part)
    scheme, separator, rest = base.partition("://")
    return scheme + separator + posixpath.normpath(rest) if separator else posixpath.normpath(base)


def file_system(path: str) -> tuple[FileSystem, str]:
    """The file system of a path, and the path inside it."""
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, LocalFileSystem

    if "\0" in path:
        raise DataError(f"{path!r} holds a null character, which no name of a file may; take it out")
    if is_local(path):
        inner = unquote(path.removeprefix("file://")) if path.startswith("file://") else path
        return LocalFileSystem(), os.path.abspath(inner)  # links stay as they are
    if problem := address_problem(path):
        raise DataError(f"{shown(path)}: {problem}")
    scheme, _, rest = path.partition("://")
    authority, _, key = rest.partition("/")
    try:
        # Without the key: pyarrow would decode it, although every character of it is just a character.
        if scheme in ("abfs", "abfss") and any(os.environ.get(name) for name in _AZURE):
            system, start = _azure(authority)
        else:
            # Google's program would try for a quarter of an hour where a key or the network is missing.
            patience = "?retry_limit_seconds=30" if scheme in ("gs", "gcs") else ""
            system, start = FileSystem.from_uri(f"{scheme}://{authority}{patience}")
    except (ArrowInvalid, OSError, ValueError) as error:
        raise DataError(
            f"{path}: no file system for this address ({error}); name a folder or s3://…"
        ) from error
    root = "/" if scheme == "hdfs" else ""
    return system, root + "/".join(filter(None, (start.strip("/"), *key.split("/"))))


def _azure(authority: str) -> tuple[FileSystem, str]:
    """Azure by a key, a SAS token or another endpoint, and the container that the address names.

    pyarrow itself takes none of them from the environment; the variables are those of Azure's command line.
    """
    from pyarrow.fs import AzureFileSystem

    key, token, endpoint = (os.environ.get(name) or None for name in _AZURE)
    container, _, host = authority.rpartition("@")
    account, _, domain = host.partition(".")
    domain = domain.removeprefix("dfs.").removeprefix("blob.") or "core.windows.net"
    where = {f"{service}_storage_authority": f".{service}.{domain}" for service in ("blob", "dfs")}
    if endpoint:
        scheme, _, rest = endpoint.partition("://")
        for service in ("blob", "dfs"):
            where[f"{service}_storage_scheme"] = scheme
            where[f"{service}_storage_authority"] = rest.partition("/")[0]
    return AzureFileSystem(account, account_key=key, sas_token=None if key else token, **where), container


def shown(path: str) -> str:
    """A path as messages may show it: of an address with a problem, which may hold a key, only the kind."""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://***" if rest.partition("/")[0] and address_problem(path) else path


def address_problem(path: str) -> str | None:
    """What keeps an address from naming one place; None for one that does, and for paths.

    Options behind a "?" would end up in the middle of every path below it.
    """
    if is_local(path):
        return None
    scheme, _, rest = path.partition("://")
    authority = rest.partition("/")[0]
    if not authority and scheme != "hdfs":
        return "no bucket is named; put one behind the ://"
    host, _, port = authority.partition(":")
    if scheme != "hdfs" and host and port.isdigit() and "@" not in host:
        return (
            "a server has no place in an address; set AWS_ENDPOINT_URL to it in the environment (Azure: "
            "AZURE_STORAGE_SERVICE_ENDPOINT), and name the bucket behind the ://"
        )
    if _has_keys(scheme, authority):
        return (
            "keys have no place in an address, which logs and results show; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (Azure: AZURE_STORAGE_KEY) in the environment instead"
        )
    options = path.partition("?")[2].split("&")
    if all(map(_OPTION.match, options)) or masked(path) != path:
        names = ", ".join(option.partition("=")[0] for option in options)
        return (
            f"options ({names}) have no place in an address; set AWS_ENDPOINT_URL and AWS_REGION (Azure: "
            "AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN) in the environment instead"
        )
    if "#" in authority or "?" in authority:
        return 'no bucket has such a name; take out "#" and "?", or put a "/" before them'
    return None


def _has_keys(scheme: str, authority: str) -> bool:
    """Whether a key or password stands before a bucket; a key with a "/" in it ends the authority early."""
    user, at, _ = authority.rpartition("@")
    if scheme == "hdfs" or scheme.startswith("abfs"):
        return ":" in user  # a container or a user name alone is none
    return ":" in authority or bool(at and user != "anonymous")
