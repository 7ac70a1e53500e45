"""What a long run says: one line a pass, and on a terminal a line that moves."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

from sequifier_ray.preprocess.progress import Progress


def test_one_line_a_pass(project: Any, events: Any) -> None:
    project.write(events([20, 30]))
    summary = project.run()
    passes = [line.split(":")[0] for line in project.lines if " rows/s)" in line]
    assert passes == ["scan", "partition", "fit", "encode"] == list(summary.seconds)
    assert any(line.startswith("partition: ") and ", 50 rows (" in line for line in project.lines)


def test_a_moving_line_on_a_terminal(monkeypatch: Any) -> None:
    monkeypatch.setattr("sequifier_ray.preprocess.progress.REDRAW_S", 0.0)
    lines: list[str] = []
    terminal = io.StringIO()
    progress = Progress(lines.append, terminal)
    assert list(progress.follow("fit", iter([5, 6, 7]), 3, lambda n: n)) == [5, 6, 7]
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert drawn[1].startswith("fit: 1 of 3, ")
    assert drawn[3].startswith("fit: 3 of 3, ")
    assert drawn[3].endswith(" rows/s, 0:00 left")
    assert drawn[-1] == ""
    assert len(lines) == 1


def test_a_terminal_gets_it_and_a_file_does_not(project: Any, events: Any) -> None:
    project.write(events([20, 30]))
    project.run()
    command = [sys.executable, "-m", "sequifier_ray", "preprocess", "--config-path", "preprocess.yaml"]
    ours, theirs = os.openpty()
    process = subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, stderr=theirs)
    output = process.communicate()[0].decode()
    os.close(theirs)
    assert b"\x1b[K" in os.read(ours, 10_000)
    os.close(ours)
    assert "\x1b" not in output
    summary = output.splitlines()[-2]
    assert summary.startswith("50 rows in 2 sequences (scan 0.")
    split = next(line for line in output.splitlines() if line.startswith("data/events-split0: "))
    assert "2 segments, 40 events, 18 windows (0.0% padding), 2 files, " in split
