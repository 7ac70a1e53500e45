"""Rendered files on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sequifier_ray.errors import ConfigError


def write(folder: str, texts: Mapping[str, str]) -> list[str]:
    """Write files into a folder; returns their paths. What somebody has changed there is not overwritten.

    Raises:
        ConfigError: a file is there with other content, or cannot be written.
    """
    root = Path(folder)
    try:
        changed = [name for name, text in texts.items() if _differs(root / name, text)]
        if changed:
            raise ConfigError(
                f"--output: {root / changed[0]} is there with other content; remove it or name another folder"
            )
        root.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (root / name).write_bytes(text.encode())
    except OSError as error:
        raise ConfigError(f"--output: cannot write {error.filename or folder}: {error.strerror}") from error
    return [str(root / name) for name in texts]


def _differs(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() != text.encode()
