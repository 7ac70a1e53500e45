"""New projects: a folder with configurations to fill in, or with data and configurations that run."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sequifier_ray.errors import ConfigError

_IGNORED_BY_GIT = "checkpoints/\ndata/\nlogs/\nmodels/\n"


def make_project(folder: str, demo: bool) -> list[str]:
    """Write a project; with ``demo`` one whose data and configurations run as they stand.

    Returns:
        The files written, relative to the folder.

    Raises:
        ConfigError: the folder has no name, is not empty, or cannot be written.
    """
    if not folder:
        raise ConfigError('make: found ""; allowed: the name of a new or empty folder')
    root = Path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; choose another name, or remove it first")
    package = files("sequifier_ray")
    source = package / ("demo" if demo else "templates")
    contents = {f"configs/{name}": (source / name).read_bytes() for name in ("preprocess.yaml", "train.yaml")}
    if demo:
        contents["data/flights.parquet"] = (source / "flights.parquet").read_bytes()
    contents[".gitignore"] = _IGNORED_BY_GIT.encode()
    try:
        (root / "data").mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return sorted(contents)
