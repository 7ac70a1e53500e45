"""Further files that `additional_config_paths` names: merged section by section, every error at its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.config.load import load_preprocess, load_train
from sequifier_ray.errors import ConfigError

OPTIMIZATION = "  learning_rate: 1e-3\n  optimizer: {name: AdamW, weight_decay: 0.1, betas: [0.9, 0.95]}\n"
TOP = "model_name: demo"


def named(*paths: str) -> tuple[str, str]:
    """An edit that names further files, on line 2 of the file."""
    return (TOP, f"additional_config_paths: [{', '.join(paths)}]\n{TOP}")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a further file; its name comes back."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> str:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
        return name

    return write_file


def error_of(load: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_sections_are_merged_deeply(train: Any, write: Any) -> None:
    plain = train()
    write("configs/a.yaml", f"global_training:\n{OPTIMIZATION}")
    write(
        "configs/b.yaml", "model:\n  backbone: {architecture: {num_layers: 2}}\ntraining_plan: {epochs: 2}\n"
    )
    edits = [(OPTIMIZATION, ""), ("      num_layers: 2\n", ""), ("training_plan: {epochs: 2}\n", "")]
    assert train(*edits, named("configs/a.yaml", "./configs/b.yaml")) == plain
    assert train((TOP, f"additional_config_paths: null\n{TOP}")) == plain
    assert train(named()) == plain


def test_one_path_as_text(preprocess: Any, write: Any) -> None:
    plain = preprocess()
    write("more.yaml", "window_length: 33\n")
    changed = preprocess(("window_length: 33", "additional_config_paths: more.yaml"))
    assert changed == plain
    assert changed.additional_config_paths is None


def test_relative_paths_start_at_project_root_and_absolute_ones_stay(tmp_path: Path, write: Any) -> None:
    write("project/configs/more.yaml", "window_length: 9\n")
    write("elsewhere/root.yaml", "project_root: project\n")
    body = "preprocessing_data_path: a.csv\nsplit_ratios: [1.0]\n"
    for root in ("project", str(tmp_path / "project")):
        top = f"project_root: {root}\nadditional_config_paths: configs/more.yaml\n"
        assert load_preprocess(write("main.yaml", top + body)).window_length == 9
    paths = [str(tmp_path / "project/configs/more.yaml"), f"file://{tmp_path}/elsewhere/root.yaml"]
    config = load_preprocess(write("main.yaml", f"additional_config_paths: {paths}\n{body}"))
    assert config.project_root == str(tmp_path / "project")
    text = error_of(
        load_preprocess, write("main.yaml", f"{body}additional_config_paths: [configs/more.yaml]\n")
    )
    assert text == (
        'main.yaml:3: additional_config_paths: "configs/more.yaml" is relative to project_root; '
        "set project_root in main.yaml, not elsewhere"
    )


def test_errors_name_the_file_that_holds_the_field(train: Any, write: Any) -> None:
    write("configs/a.yaml", "\nglobal_training:\n  learning_rate: fast\n  gradientclip: 1.0\n")
    text = error_of(
        train, ("  learning_rate: 1e-3\n", ""), ("  batch_size: 4\n", ""), named("configs/a.yaml")
    )
    places = [line.split(": ")[0] for line in text.splitlines()]
    assert places == ["train.yaml:6", "configs/a.yaml:3", "configs/a.yaml:4"]
    write("configs/a.yaml", "\n\nglobal_training: {bert_spec: {a: 1}}\n")
    text = error_of(train, named("configs/a.yaml"))
    assert text == 'configs/a.yaml:3: "global_training.bert_spec" is not supported yet'
    write("configs/a.yaml", "global_training:\n  torch_compile: none\n\n  early_stopping_epochs: 3\n")
    text = error_of(
        train, ("  torch_compile: none\n", ""), ("evaluation: true\n", ""), named("configs/a.yaml")
    )
    assert text.startswith("configs/a.yaml:4: global_training.early_stopping_epochs: ")


def test_a_field_that_is_set_twice(train: Any, write: Any) -> None:
    write(
        "configs/b.yaml",
        "\nglobal_training:\n  batch_size: 4\n  resume: {policy: never}\nevaluation: false\n",
    )
    write("configs/c.yaml", "global_training: {resume: {policy: required}, batch_size: 1}\n")
    assert error_of(train, named("configs/b.yaml", "configs/c.yaml")).splitlines() == [
        'configs/b.yaml:3: "global_training.batch_size" is set twice, first in train.yaml:9; keep one',
        'configs/b.yaml:5: "evaluation" is set twice, first in train.yaml:5; keep one',
        'configs/c.yaml:1: "global_training.resume.policy" is set twice, first in configs/b.yaml:4; keep one',
        'configs/c.yaml:1: "global_training.batch_size" is set twice, first in train.yaml:9; keep one',
    ]
    write("configs/b.yaml", "model: 3\n")
    text = error_of(train, named("configs/b.yaml"))
    assert text == 'configs/b.yaml:1: "model" is set twice, first in train.yaml:15; keep one'


def test_wrappers_are_unwrapped_after_merging(train: Any, write: Any) -> None:
    plain = train()
    write("b.yaml", "dataset_training:\n main:\n  criterion: {kind: CrossEntropyLoss}\n")
    edits = [("dataset:\n  part:", "dataset_training:\n main:\n  part:")]
    edits += [("  criterion: {kind: CrossEntropyLoss}\n", "")]
    assert train(*edits, named("b.yaml")) == plain
    write("b.yaml", "dataset_training:\n main:\n\n  criterion: {kind: 3}\n")
    text = error_of(train, *edits, named("b.yaml"))
    assert text == "b.yaml:4: dataset.criterion.kind: found 3; allowed: text"
    write("b.yaml", "dataset_training:\n other: {}\n")
    assert "with several entries (main, other) is not supported yet" in error_of(
        train, *edits, named("b.yaml")
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "train.yaml:2: b.yaml does not exist; relative paths start at project_root"),
        (
            "# nothing\n",
            "b.yaml:1: the file is empty; write fields into it, or no longer name it (named at train.yaml:2)",
        ),
        (
            "\n- a\n",
            "b.yaml:2: the file is not a mapping; allowed: lines of `field: value` (named at train.yaml:2)",
        ),
        ("a: [1\n", "b.yaml:2: not valid YAML: "),
        ("seed: 1\nseed: 2\n", 'b.yaml:2: "seed" is set twice, first on line 1; keep one'),
        (
            "seed: 1\nadditional_config_paths: [c.yaml]\n",
            "b.yaml:2: additional_config_paths: a further file names no files itself; "
            "name them all at train.yaml:2",
        ),
    ],
)
def test_a_further_file_that_cannot_be_taken(train: Any, write: Any, content: str | None, text: str) -> None:
    if content is not None:
        write("b.yaml", content)
    assert error_of(train, named("b.yaml")).startswith(text)


def test_a_folder_in_place_of_a_further_file(train: Any, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").mkdir()
    assert error_of(train, named("b.yaml")).startswith("train.yaml:2: cannot read b.yaml: ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("3", "additional_config_paths: found 3; allowed: a path, or a list of paths"),
        ("{a: b}", "additional_config_paths: found {'a': 'b'}; allowed: a path, or a list of paths"),
        ("[3]", "additional_config_paths.0: found 3; allowed: text"),
        ("''", 'additional_config_paths.0: found ""; allowed: text that is not empty'),
        ("[train.yaml]", "additional_config_paths: train.yaml is read already; name each file once"),
        ("[b.yaml, ./b.yaml]", "additional_config_paths: b.yaml is read already; name each file once"),
    ],
)
def test_what_names_no_files(train: Any, write: Any, value: str, text: str) -> None:
    write("b.yaml", "seed: 1\n")
    assert error_of(train, (TOP, f"additional_config_paths: {value}\n{TOP}")) == f"train.yaml:2: {text}"


def test_a_project_root_that_is_none(train: Any) -> None:
    text = error_of(train, ("project_root: .", "project_root: http://b/run"), named("b.yaml"))
    assert text.startswith("train.yaml:1: project_root: found http://b/run; allowed: a folder")
    text = error_of(train, ("project_root: .", "project_root:"), named("b.yaml"))
    assert text == "train.yaml:1: project_root: found null; allowed: text"


def test_the_command_line_replaces_what_further_files_say(train: Any, write: Any) -> None:
    write("b.yaml", "global_training: {gradient_clip: 1.0}\n")
    write("there/c.yaml", "seed: 5\n")
    config = train(named("b.yaml"), overrides={"global_training.gradient_clip": 2.0})
    assert config.global_training.gradient_clip == 2.0
    config = train(named("b.yaml"), overrides={"additional_config_paths": "c.yaml", "project_root": "there"})
    assert (config.seed, config.global_training.gradient_clip) == (5, None)
    text = error_of(train, named("b.yaml"), overrides={"additional_config_paths": ["d.yaml"]})
    assert text == "command line: d.yaml does not exist; relative paths start at project_root"


def test_the_command_line_may_set_what_only_a_further_file_says(tmp_path: Path, write: Any) -> None:
    write("root.yaml", "project_root: a\n")
    body = f"additional_config_paths: {tmp_path}/root.yaml\nmodel_name: x\n"
    text = error_of(load_train, write("main.yaml", body), {"project_root": "b"})
    assert not re.search("project_root|twice", text)
