"""The user's own folder among the node's temporary ones: others could plant files and links in any other."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sequifier_ray.errors import ConfigError


def own_folder() -> Path:
    """Its path; ``make_own_folder`` makes it."""
    return Path(tempfile.gettempdir()) / f"sequifier-ray-{os.getuid()}"


def make_own_folder(path: Path) -> None:
    """Make it, for this user alone.

    Raises:
        ConfigError: it cannot be made, or somebody else owns it or may write there.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise ConfigError(
                f"{path} is not this user's alone (owner {found.st_uid}, mode {found.st_mode & 0o777:o}); "
                "remove it, have it removed, or set TMPDIR to another folder"
            )
        path.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot make {path}: {error.strerror}; set TMPDIR to another folder") from error
