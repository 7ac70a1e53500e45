"""Options that replace fields of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.config.words import spread_word_list

PREPROCESS = ("preprocess", "--config-path", "preprocess.yaml")


def columns(project: Path) -> list[str]:
    text = (project / "configs" / "metadata_configs" / "events.json").read_text()
    return sorted(json.loads(text)["column_data_types"])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--selected-columns", "dest", "arr delay"], ["arr delay", "dest"]),
        (["--selected-columns", "dest,arr delay"], ["arr delay", "dest"]),
        (["--selected-columns", "arr delay"], ["arr delay"]),
        (["--selected-columns", "kind,of", "dest"], ["dest", "kind,of"]),
        (["--selected-columns=kind,of", "dest"], ["dest", "kind,of"]),
        (["--selected-columns", "dest", "--selected-columns", "kind,of"], ["dest", "kind,of"]),
        (["--selected-columns=dest, arr delay,"], ["arr delay", "dest"]),
        (["--set", 'selected_columns=["kind,of"]'], ["kind,of"]),
    ],
)
def test_columns_are_named_as_they_stand(
    project: Path, command: Any, words: list[str], names: list[str]
) -> None:
    code, _, err = command(*PREPROCESS, *words, "--set", "window_stride=2")
    assert (code, err) == (0, "")
    assert columns(project) == names


@pytest.mark.parametrize(
    ("words", "spread"),
    [
        ("--selected-columns a b --verbose", "--selected-columns=a --selected-columns=b --verbose"),
        ("--selected-columns=a b", "--selected-columns=a --selected-columns=b"),
        ("--selected-columns=-a b", "--selected-columns=-a --selected-columns=b"),
        ("--selected-columns --verbose", "--verbose --selected-columns"),
        (
            "--selected-columns a --selected-columns --verbose",
            "--selected-columns=a --verbose --selected-columns",
        ),
        ("--set a=b c", "--set a=b c"),
    ],
)
def test_the_word_list_becomes_a_repeated_option(words: str, spread: str) -> None:
    assert spread_word_list(words.split()) == spread.split()


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("", 'command line: selected_columns.0: found ""; allowed: text that is not empty'),
        (",", "command line: selected_columns: found []; allowed: a list with at least one entry, or null"),
    ],
)
def test_columns_without_names(project: Path, command: Any, word: str, text: str) -> None:
    assert command(*PREPROCESS, "--selected-columns", word) == (2, "", f"error: {text}\n")


def test_set_replaces_fields_of_preprocess(project: Path, command: Any) -> None:
    code, out, err = command(
        *PREPROCESS, "--set", "max_rows=8", "--set", "write_format=csv", "--set", "max_rows=16"
    )
    assert (code, err) == (0, "")
    assert "16 rows in 2 sequences" in out
    assert (project / "data" / "events-split0.csv").exists()


def test_set_replaces_fields_of_train(project: Path, command: Any) -> None:
    command("make", "p")
    words = ("train", "--config-path", "p/configs/train.yaml")
    code, _, err = command(*words, "--set", "global_training.batch_size=0", "--set", "model_name=m")
    assert code == 2
    assert "error: command line: global_training.batch_size: found 0; allowed: at least 1\n" in err
    assert "model_name" not in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--set", "seed"],
            '--set: found "seed"; allowed: NAME=VALUE, such as seed=7',
        ),
        (["--set", "seed=[1"], "--set seed: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        (["--set", "max_row=1"], 'command line: unknown field "max_row" (did you mean "max_rows"?)'),
        (
            ["--set", "preprocessing_data_path=a", "--data-path", "b"],
            "--data-path and --set preprocessing_data_path set the same field; keep one",
        ),
        (
            ["--set", "selected_columns=[a]", "--selected-columns", "b"],
            "--selected-columns and --set selected_columns set the same field; keep one",
        ),
        (["--set", "seed=1", "--randomize"], "--randomize and --set seed set the same field; keep one"),
        (
            ["--data-path", ""],
            'command line: preprocessing_data_path: found ""; allowed: text that is not empty',
        ),
    ],
)
def test_a_mistake_in_an_option(project: Path, command: Any, words: list[str], text: str) -> None:
    assert command(*PREPROCESS, *words) == (2, "", f"error: {text}\n")


def test_a_mistake_in_an_option_of_train(project: Path, command: Any) -> None:
    same = "--address and --set ray.address set the same field; keep one"
    assert command("train", "--address", "a:1", "--set", "ray.address=b:1") == (2, "", f"error: {same}\n")
    same = "--randomize and --set seed set the same field; keep one"
    assert command("train", "--randomize", "--set", "seed=1") == (2, "", f"error: {same}\n")
