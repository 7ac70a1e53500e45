"""What a user of the command line sees: texts, streams and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sequifier_ray.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A demo project, with the current directory in it."""
    assert run(capsys, "make", str(tmp_path / "demo"), "--demo")[0] == 0
    monkeypatch.chdir(tmp_path / "demo")
    return tmp_path / "demo"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, "sequifier-ray 0.1.0\n", "")


@pytest.mark.parametrize(
    "words", [("train", "--nope"), ("fly",), ("preprocess", "--selected-columns"), ("make",)]
)
def test_a_usage_mistake_ends_with_2_and_one_line_of_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err


def test_make_writes_templates_and_leaves_a_folder_with_contents_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    code, out, _ = run(capsys, "make", str(folder))
    assert code == 0
    assert "fill in configs/preprocess.yaml and configs/train.yaml" in out
    (folder / "configs" / "train.yaml").write_text("changed")
    code, _, err = run(capsys, "make", str(folder))
    assert code == 2
    assert err == f"error: {folder} exists and is not empty; choose another name, or remove it first\n"
    assert (folder / "configs" / "train.yaml").read_text() == "changed"


def test_make_refuses_a_file_of_that_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    code, _, err = run(capsys, "make", str(tmp_path / "taken"))
    assert code == 2
    assert "taken exists and is not empty" in err


def test_templates_name_what_is_still_to_fill_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "make", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path / "mine")
    code, _, err = run(capsys, "preprocess")
    assert code == 2
    assert "configs/preprocess.yaml:6: preprocessing_data_path: found null" in err
    code, _, err = run(capsys, "train")
    assert code == 2
    fields = ["model_name", "model.interface.input_columns", "model.interface.target_columns"]
    fields += ["dataset.part.metadata_config_path", "dataset.criterion"]
    lines = err.splitlines()
    assert len(lines) == len(fields)
    for field in fields:
        assert any(line.startswith("error: configs/train.yaml:") and f" {field}: " in line for line in lines)


def test_the_demo_preprocesses_as_it_stands(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "preprocess")
    assert (code, err) == (0, "")
    assert "85,051 rows in 1,010 sequences" in out
    assert f"metadata: {demo}/configs/metadata_configs/flights.json" in out
    for split in range(3):
        assert (demo / "data" / f"flights-split{split}" / "metadata.json").exists()


@pytest.mark.parametrize("words", [("dest", "arr_delay"), ("dest,arr_delay",)])
def test_selected_columns_as_words_or_as_a_list(
    demo: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(capsys, "preprocess", "--selected-columns", *words, "--verbose")[0] == 0
    description = json.loads((demo / "configs" / "metadata_configs" / "flights.json").read_text())
    assert sorted(description["column_data_types"]) == ["arr_delay", "dest"]


def test_an_option_replaces_the_field_and_is_named_in_its_error(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "preprocess", "--data-path", "gone.parquet")
    assert code == 2
    assert f"error: preprocessing_data_path: {demo}/gone.parquet does not exist" in err
    code, _, err = run(capsys, "preprocess", "--selected-columns", "dest", "dest")
    assert code == 2
    assert err.startswith("error: command line: selected_columns: ")


def test_randomize_tells_its_seed(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = {run(capsys, "preprocess", "--randomize")[1].splitlines()[0] for _ in range(2)}
    assert len(seeds) == 2
    assert all(line.startswith("seed: ") for line in seeds)


def test_a_data_error_ends_with_3(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (demo / "data" / "flights.parquet").write_bytes(b"PAR1")
    code, _, err = run(capsys, "preprocess")
    assert code == 3
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_a_traceback_only_with_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    text = "error: gone.yaml does not exist; name the configuration with --config-path\n"
    assert run(capsys, "preprocess", "--config-path", "gone.yaml") == (2, "", text)
    code, _, err = run(capsys, "preprocess", "--config-path", "gone.yaml", "--verbose")
    assert code == 2
    assert "Traceback" in err
    assert err.endswith(text)


def test_module_and_console_script_are_the_same_program() -> None:
    script = Path(sys.executable).parent / "sequifier-ray"
    for command in ([str(script)], [sys.executable, "-m", "sequifier_ray"]):
        done = subprocess.run([*command, "train", "--nope"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("Usage: sequifier-ray train")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -m sequifier_ray make {tmp_path / 'p'} --demo | true; exit ${{PIPESTATUS[0]}}"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=buffered)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_unknown_launcher(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--launcher", "rya")
    assert code == 2
    assert err == 'error: --launcher: "rya" is none of auto, ray, torchrun, spawn, local\n'


def test_no_traceback_shows_a_key(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("s3://AKIA1:topsecret@bucket/x", "s3://AKIA1@topsecret:b/p", "s3://b/p?sig=topsecret"):
        code, _, err = run(capsys, "preprocess", "--set", f"project_root={address}", "--verbose")
        assert code == 2
        assert "Traceback" in err
        assert "topsecret" not in err


INTERRUPTED = """
import os, signal, sys
from sequifier_ray.cli import main
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "sequifier_ray.config.load":
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
sys.addaudithook(interrupt)
sys.exit(main(["preprocess"]))
"""


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")
