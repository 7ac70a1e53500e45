"""`--set NAME=VALUE`: parsed as YAML, checked like the file, told as the command line."""

from __future__ import annotations

from typing import Any

import pytest

from sequifier_ray.config.overrides import parse_settings
from sequifier_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("16", 16),
        ("[a, b]", ["a", "b"]),
        ("null", None),
        ("~", None),
        ("{name: Adam}", {"name": "Adam"}),
        ("true", True),
        ("a=b", "a=b"),
        (" x ", "x"),
        ('""', ""),
        ("- a\n- b", ["a", "b"]),
    ],
)
def test_values_are_yaml(text: str, value: object) -> None:
    assert parse_settings([f"a.b={text}"], {}) == {"a.b": value}


def test_a_later_word_wins_also_over_what_stands_between() -> None:
    assert parse_settings(["a=1", "a=2"], {}) == {"a": 2}
    settings = parse_settings(["a.b=1", "a={c: 1}", "a.b=2"], {})
    assert list(settings.items()) == [("a", {"c": 1}), ("a.b", 2)]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("seed", '--set: found "seed"; allowed: NAME=VALUE, such as seed=7'),
        ("=3", '--set: found "=3"; allowed: NAME=VALUE'),
        ("a..b=3", '--set: found "a..b=3"; allowed: NAME=VALUE'),
        ("", '--set: found ""; allowed: NAME=VALUE'),
        ("seed=", "--set seed: found no value; write seed=null, or seed='\"\"' for empty text"),
        ("seed=# 3", "--set seed: found no value; "),
        ("seed=[1", "--set seed: not valid YAML: "),
        ("seed=2024-13-45", "--set seed: not valid YAML: month must be in 1..12"),
        ("a={b: 1, b: 2}", '--set a: "b" is set twice'),
        ("a={1: 2}", '--set a: found 1 as a field name; names are text, write "1"'),
        ("a=" + 99 * "[" + 99 * "]", "--set a: nested too deeply; allowed: at most 50 levels"),
    ],
)
def test_a_word_that_is_no_setting(word: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings([word], {})
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("name", ["selected_columns", "selected_columns.x"])
def test_two_options_for_one_field(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings([f"{name}=a"], {"--selected-columns": "selected_columns"})
    assert str(caught.value) == f"--selected-columns and --set {name} set the same field; keep one"
    with pytest.raises(ConfigError, match=r"^--address and --set ray set the same field"):
        parse_settings(["ray={}"], {"--address": "ray.address"})
    assert parse_settings(["selected_columns_x=a"], {"--selected-columns": "selected_columns"})


def test_parts_and_wholes_in_their_order(train: Any) -> None:
    plan = {"training_plan.epochs": 5, "training_plan": {"epochs": 7}}
    assert train(overrides=plan).training_plan.epochs == 7
    assert train(overrides=dict(reversed(plan.items()))).training_plan.epochs == 5
    optimizer = train(overrides={"global_training.optimizer": {"name": "SGD"}}).global_training.optimizer
    assert (optimizer.name, optimizer.arguments) == ("SGD", {})
    optimizer = train(overrides={"global_training.optimizer.weight_decay": 0}).global_training.optimizer
    assert optimizer.arguments == {"weight_decay": 0, "betas": [0.9, 0.95]}


def test_the_wrapped_form_can_be_named(train: Any) -> None:
    edits = [
        ("  interface:\n", "  interfaces:\n   main:\n"),
        ("dataset:\n  part", "dataset_training:\n main:\n  part"),
    ]
    names = ["model.interfaces.main.target_columns", "model.interface.target_columns"]
    for name in names:
        config = train(*edits, overrides={name: ["size"], "dataset.criterion": {"size": "MSELoss"}})
        assert config.model.interface.target_columns == ("size",)
        with pytest.raises(
            ConfigError, match=r"^command line: model.interface.target_columns: found 3; allowed"
        ):
            train(*edits, overrides={name: 3})
    with pytest.raises(ConfigError, match=r"several entries \(main, mian\)"):
        train(*edits, overrides={"model.interfaces.mian.target_columns": ["size"]})
    with pytest.raises(ConfigError, match=r'^command line: found both "dataset_training" and "dataset"'):
        train(overrides={"dataset_training.main.criterion": {}})
    whole = {"main": {"part": 1, "criterion": {"kind": "CrossEntropyLoss"}}}
    with pytest.raises(ConfigError, match=r"^command line: dataset.part: found 1; allowed: a section"):
        train(*edits, overrides={"dataset_training": whole})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("batch_size", 3, 'unknown field "batch_size" here; it belongs in global_training.batch_size'),
        ("global_training.batchsize", 3, 'unknown field "global_training.batchsize" (did you mean'),
        ("seed.x", 3, "seed: found {'x': 3}; allowed: an integer"),
        ("ray.adress", "a", 'unknown field "ray.adress" (did you mean "address"?)'),
        ("training_plan.phases", [1], '"training_plan.phases" is not supported yet'),
        ("global_training.target_offset", 0, "global_training.target_offset: found 0; "),
    ],
)
def test_errors_name_the_command_line(train: Any, name: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(("device: cpu", "device: cpu\nseed: 1"), overrides={name: value})
    assert str(caught.value).startswith(f"command line: {text}")
