"""The command line in this process, and a table whose column names need care."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sequifier_ray.cli import main

CONFIG = """\
project_root: .
preprocessing_data_path: events.csv
split_ratios: [0.5, 0.5]
window_length: 3
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of a command."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small table and preprocess.yaml, and the current directory in it."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i // 8},{i % 8},{i % 3},{i / 2},x{i % 2}" for i in range(32)]
    header = 'sequenceId,itemPosition,dest,arr delay,"kind,of"'
    (tmp_path / "events.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "preprocess.yaml").write_text(CONFIG)
    return tmp_path
