"""Mistakes are found before workers start, and the text says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from sequifier_ray.errors import ConfigError, DataError
from sequifier_ray.train.preflight import survey

CASES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"global_training__optimizer": {"name": "AdamV"}},
        ConfigError,
        r'global_training\.optimizer\.name: "AdamV" is not a class of torch\.optim \(did you mean .*"Adam',
    ),
    (
        {"global_training__optimizer": {"name": "AdamW", "momentun": 0.9}},
        ConfigError,
        r"global_training\.optimizer: AdamW does not accept these arguments .*momentun",
    ),
    ({"global_training__optimizer": {"name": "LBFGS"}}, ConfigError, r"global_training\.optimizer: LBFGS"),
    (
        {"global_training__optimizer": {"name": "SparseAdam"}},
        ConfigError,
        r"global_training\.optimizer: SparseAdam",
    ),
    (
        {"global_training__scheduler": {"name": "CosineAnealingLR", "T_max": 4}},
        ConfigError,
        r'global_training\.scheduler\.name: "CosineAnealingLR" .*did you mean "CosineAnnealingLR"',
    ),
    (
        {"dataset__criterion": {"dest": "CrossEntropy", "arr_delay": "MSELoss"}},
        ConfigError,
        r'dataset\.criterion\.dest: .*CrossEntropy.*did you mean "CrossEntropyLoss"',
    ),
    (
        {"global_training__context_length": 33, "model__interface__decoder": {"prediction_length": 1}},
        ConfigError,
        r"context_length: 33 \+ max_target_offset 1 > window_length 33; use a context_length of at most 32",
    ),
    (
        {"model__interface__target_columns": ["destt"], "dataset__criterion": {"destt": "CrossEntropyLoss"}},
        ConfigError,
        r'model\.interface\.target_columns: .*"destt".*did you mean "dest"',
    ),
    (
        {"global_training__read_format": "parquet"},
        ConfigError,
        r'read_format: found "parquet", but the data set was written as "pt"',
    ),
    (
        {"dataset__part": {"metadata_config_path": "configs/metadata_configs/flight.json"}},
        DataError,
        r"flight\.json: there is no dataset description .*run `sequifier-ray preprocess` first",
    ),
]


@pytest.mark.parametrize(("fields", "kind", "text"), CASES)
def test_error_text(flights: Any, fields: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        survey(flights.train_config(model_name="wrong", **fields))


def test_fewer_samples_than_an_update_is_a_warning_with_both_numbers(flights: Any) -> None:
    ground = survey(flights.train_config(model_name="large", global_training__batch_size=4000))
    assert len(ground.warnings) == 1
    assert f"{ground.train.n_samples} samples, fewer than one update takes (8000 =" in ground.warnings[0]


def test_more_streams_than_samples_in_an_update(flights: Any) -> None:
    config = flights.train_config(model_name="streams", global_training__data_streams=1000)
    with pytest.raises(ConfigError, match=r"data_streams: 1000 is more than the 128 samples of an update"):
        survey(config)


def test_merged_data_set_and_distributed_training(new_project: Any) -> None:
    project = new_project(30)
    project.preprocess(write_format="parquet", merge_output=True)
    config = project.train_config(model_name="merged", global_training__read_format="parquet")
    with pytest.raises(ConfigError, match=r"distributed: true needs .* set merge_output: false"):
        survey(config)


def test_no_second_split(new_project: Any) -> None:
    project = new_project(30)
    project.preprocess(split_ratios=[1.0])
    with pytest.raises(ConfigError, match=r"evaluation: true needs a second split"):
        survey(project.train_config(model_name="one"))
