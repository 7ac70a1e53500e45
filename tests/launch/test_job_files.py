"""What a job takes along, and what is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sequifier_ray.cli import _command_of, main
from sequifier_ray.config.load import load_train
from sequifier_ray.config.positions import read_yaml, yaml_text
from sequifier_ray.launch.job_files import write_files
from sequifier_ray.project import make_project

ROOT = "--set=project_root=/shared"
# A port that nobody listens at: what is not refused before ends there.
NOWHERE = ("submit", "--address", "http://127.0.0.1:9")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project to stand in."""
    make_project(str(tmp_path / "project"), demo=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is said about a command that is not sent."""

    def run(*words: str) -> str:
        assert main([*NOWHERE, "--", *words]) == 2
        return capsys.readouterr().err

    return run


@pytest.fixture
def sent(folder: Path, tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """The words that a job runs, and the files that go along."""

    def run(*words: str) -> tuple[list[str], dict[str, str]]:
        target = tmp_path / "outer" / "sent"
        target.mkdir(parents=True, exist_ok=True)
        job = write_files(_command_of(words), target)
        files = [path for path in target.parent.rglob("*") if path.is_file()]
        return job, {str(path.relative_to(target)): path.read_text() for path in files}

    return run


def test_a_relative_root_is_refused(refused: Callable[..., str]) -> None:
    assert 'configs/train.yaml: project_root: found ".", which on a cluster' in refused("train")


def test_other_commands_and_missing_files_are_refused(refused: Callable[..., str]) -> None:
    assert "submit: found 'make'; allowed: preprocess, inspect, train" in refused("make", "x")
    assert "there is no no.yaml in this folder" in refused("train", "--config-path", "no.yaml")
    assert main([*NOWHERE, "--env", "NOT_SET_ANYWHERE", "--", "train", ROOT]) == 2


def test_a_mistake_shows_before_anything_is_sent(refused: Callable[..., str]) -> None:
    message = "command line: global_training.batch_size"
    assert message in refused("train", ROOT, "--set", "global_training.batch_size=0")
    assert "no-such" in refused("train", ROOT, "--no-such")
    assert "--data-path and --set preprocessing_data_path" in refused(
        "preprocess", ROOT, "--data-path", "a", "--set", "preprocessing_data_path=b"
    )


@pytest.mark.parametrize("path", ["../other.yaml", "configs/../../other.yaml", "./../other.yaml"])
def test_nothing_outside_of_the_folder_is_taken(path: str, folder: Path, refused: Callable[..., str]) -> None:
    (folder.parent / "other.yaml").write_bytes((folder / "configs" / "train.yaml").read_bytes())
    assert f"{path} lies outside of this folder" in refused("train", ROOT, "--config-path", path)


@pytest.mark.parametrize(
    ("path", "normal"),
    [("..yaml/t.yaml", "..yaml/t.yaml"), ("train.yaml", "train.yaml"), ("./a/../b/t.yaml", "b/t.yaml")],
)
def test_any_file_of_the_folder_is_taken(
    path: str, normal: str, folder: Path, sent: Callable[..., tuple[list[str], dict[str, str]]]
) -> None:
    (folder / normal).parent.mkdir(exist_ok=True)
    (folder / normal).write_bytes((folder / "configs" / "train.yaml").read_bytes())
    words, files = sent("train", ROOT, "--config-path", path)
    assert words == ["train", f"--config-path={normal}", ROOT]
    assert list(files) == [normal]


def test_the_last_of_two_paths_counts(
    folder: Path, sent: Callable[..., tuple[list[str], dict[str, str]]]
) -> None:
    (folder / "b.yaml").write_bytes((folder / "configs" / "train.yaml").read_bytes())
    words, files = sent("train", "--config-path", "configs/train.yaml", ROOT, "--config-path=b.yaml")
    assert words == ["train", "--config-path=b.yaml", ROOT]
    assert list(files) == ["b.yaml"]


def test_further_files_are_merged_into_the_one_that_is_sent(
    folder: Path, sent: Callable[..., tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    path = folder / "configs" / "train.yaml"
    values = yaml.safe_load(path.read_text())
    model = {"model": values.pop("model")}
    (folder / "model.yaml").write_text(yaml.safe_dump(model))
    path.write_text(yaml.safe_dump({**values, "additional_config_paths": "lost.yaml"}))
    words, files = sent("train", ROOT, "--set", "additional_config_paths=[model.yaml]", "--set", "seed=3")
    assert words == ["train", "--config-path=configs/train.yaml", ROOT, "--set", "seed=3"]
    assert list(files) == ["configs/train.yaml"]
    assert yaml.safe_load(files["configs/train.yaml"]) == {**values, **model}
    alone = tmp_path / "alone.yaml"
    alone.write_text(files["configs/train.yaml"])
    assert load_train(str(alone), {"project_root": "/shared", "seed": 3}).seed == 3


def test_a_further_file_that_is_not_here_is_named(folder: Path, refused: Callable[..., str]) -> None:
    words = ("train", ROOT, "--set", "additional_config_paths=lost.yaml")
    assert "there is no lost.yaml on this machine" in refused(*words)


def test_a_file_of_the_cluster_is_left_to_it(sent: Callable[..., tuple[list[str], dict[str, str]]]) -> None:
    words = [
        "train",
        "--config-path",
        "/shared/train.yaml",
        "--set",
        "additional_config_paths=/shared/x.yaml",
    ]
    assert sent(*words) == (words, {})


def test_values_are_sent_as_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        'a: 1e-3\nb: "1e-3"\nc: 1e-05\nd: [&x {e: "1"}, *x]\nf: "yes"\ng: "\\x7f\U0001f600"\nh: "0x1"\n'
    )
    values = read_yaml(str(path)).values
    path.write_text(yaml_text(values))
    assert read_yaml(str(path)).values == values
