"""Files, names and streams as nobody means them: a line and an exit code, never a hang or a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PREPROCESS = ("preprocess", "--config-path", "preprocess.yaml")
LONG = 300 * "x"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which $S is the program."""
    words = ["bash", "-c", line]
    environment = {**os.environ, "S": f"{sys.executable} -m sequifier_ray"}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_numbers_beyond_64_bits(project: Path, command: Any) -> None:
    text = f"found {10**30}; allowed: below 2^63"
    for field in ("window_length", "max_rows", "max_target_offset", "seed", "n_cores"):
        code, out, err = command(*PREPROCESS, "--set", f"{field}={10**30}")
        assert (code, out) == (2, "")
        assert f"command line: {field}: {text}" in err


@pytest.mark.parametrize("name", [".", ""])
def test_a_folder_as_configuration(project: Path, command: Any, name: str) -> None:
    code, _, err = command("preprocess", "--config-path", name)
    assert code == 2
    assert err.startswith(f"error: cannot read {name}: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_configuration_without_permission(project: Path, command: Any) -> None:
    (project / "preprocess.yaml").chmod(0)
    code, _, err = command(*PREPROCESS)
    assert code == 2
    assert err.startswith("error: cannot read preprocess.yaml: ")


@pytest.mark.parametrize("path", [LONG, f"a/../{LONG}/b.yaml"])
def test_an_overlong_name(project: Path, command: Any, path: str) -> None:
    text = "the name is too long; choose a shorter one\n"
    assert command("train", "--config-path", path) == (2, "", f"error: cannot look at {path}: {text}")
    (project / "more.yaml").write_text(f"additional_config_paths: {path}\nproject_root: .\n")
    more = ("preprocess", "--config-path", "more.yaml")
    assert command(*more)[2].startswith("error: more.yaml:1: cannot look at ")
    for words in (("make", path), (*PREPROCESS, "--data-path", path)):
        code, _, err = command(*words)
        assert code == 2
        assert "name is too long; choose" in err or err.endswith(": File name too long\n")
        assert "Traceback" not in err


def test_a_name_that_is_not_utf8(project: Path, command: Any) -> None:
    code, _, err = command("preprocess", "--config-path", os.fsdecode(b"\xff.yaml"))
    assert code == 2
    assert err == "error: cannot look at '\\udcff.yaml': the name is not UTF-8; rename the file\n"


def test_files_that_are_none(project: Path, command: Any) -> None:
    empty = ":1: the file is empty; `sequifier-ray make NAME` writes a template\n"
    os.mkfifo("pipe.yaml")
    for name in ("/dev/null", "pipe.yaml"):
        assert command("preprocess", "--config-path", name) == (2, "", f"error: {name}{empty}")
    text = "error: /dev/zero is a device; name a file with lines of `field: value`\n"
    assert command("preprocess", "--config-path", "/dev/zero") == (2, "", text)


def test_a_pipe_with_a_writer_is_read(project: Path) -> None:
    done = shell("$S preprocess --config-path <(cat preprocess.yaml; sleep 1; echo sed: 3)")
    assert done.returncode == 2
    assert ':5: unknown field "sed" (did you mean "seed"?)' in done.stderr
    done = shell("$S preprocess --config-path <(printf '\\xff')")
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr


def test_deeply_nested_yaml(project: Path, command: Any) -> None:
    for levels in (60, 5000):
        (project / "preprocess.yaml").write_text(f"project_root: .\na: {levels * '['}{levels * ']'}\n")
        text = "error: preprocess.yaml:2: nested too deeply; allowed: at most 50 levels\n"
        assert command(*PREPROCESS) == (2, "", text)


def test_a_list_as_a_field_name(project: Path, command: Any) -> None:
    (project / "preprocess.yaml").write_text("project_root: .\n[a]: 2\n")
    text = "error: preprocess.yaml:2: found a list as a field name; names are text\n"
    assert command(*PREPROCESS) == (2, "", text)


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_streams(project: Path, streams: str) -> None:
    assert shell(f"$S preprocess --config-path preprocess.yaml {streams}").returncode == 0
    assert (project / "configs" / "metadata_configs" / "events.json").exists()
    assert shell(f"$S preprocess --config-path gone.yaml {streams}").returncode == 2


def test_a_closed_stdout_leaves_stderr(project: Path) -> None:
    done = shell("$S preprocess --config-path gone.yaml >&-")
    assert done.stderr == "error: gone.yaml does not exist; name the configuration with --config-path\n"


def test_make_wants_a_name(project: Path, command: Any) -> None:
    text = 'error: make: found ""; allowed: the name of a new or empty folder\n'
    assert command("make", "") == (2, "", text)
    assert not (project / "configs").exists()


def test_make_quotes_what_the_shell_would_split(project: Path, command: Any) -> None:
    code, out, _ = command("make", "my proj", "--demo")
    assert code == 0
    assert "next: cd 'my proj', then `sequifier-ray preprocess`" in out
