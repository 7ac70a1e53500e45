"""A folder written by Sequifier trains unchanged, with the losses of our own shards of the same table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.errors import DataError
from sequifier_ray.launch.choose import train
from sequifier_ray.train.preflight import survey

EPOCHS = 4
FIELDS: dict[str, Any] = {
    "dataset__part": {"metadata_config_path": "configs/metadata_configs/events.json"},
    "dataset__criterion": {"kind": "CrossEntropyLoss", "size": "MSELoss"},
    "model__interface__input_columns": ["kind", "size"],
    "model__interface__target_columns": ["kind", "size"],
    "model__interface__ingestion": {
        "type": "embedding",
        "output_dim": 64,
        "feature_embedding_dims": {"kind": 48, "size": 16},
    },
    "model__interface__decoder": {"type": "linear", "prediction_length": 10},
    "global_training__context_length": 10,
    "global_training__batch_size": 1000,  # every sample in one update: the order of files does not matter
    "global_training__calculate_validation_loss_on_initialization": True,
    "global_training__distributed": False,
    "global_training__data_parallelism": ...,
    "global_training__world_size": 1,
    "training_plan__epochs": EPOCHS,
}


@pytest.mark.parametrize("views", [{}, {"global_training__window_stride": 1}])
def test_same_losses_as_our_own_shards(sequifier_and_ours: Any, views: dict[str, Any]) -> None:
    name = "views" if views else "plain"
    fields = {**FIELDS, **views}
    if views:
        fields["global_training__context_length"] = 6
        fields["model__interface__decoder"] = {"type": "linear", "prediction_length": 6}
    for project in sequifier_and_ours:
        assert train(project.train_config(model_name=name, **fields), "local", None) == 0
    theirs, ours = ([line["loss"] for line in p.metrics(name, "train")] for p in sequifier_and_ours)
    assert len(theirs) == EPOCHS
    assert theirs == pytest.approx(ours, rel=1e-5)
    theirs, ours = ([line["loss"] for line in p.metrics(name, "validation")] for p in sequifier_and_ours)
    assert len(theirs) == EPOCHS + 1
    assert theirs == pytest.approx(ours, rel=1e-5)


def test_tables_of_windows_are_refused_for_what_they_are(sequifier_and_ours: Any, tmp_path: Path) -> None:
    """Not for a read_format that would not help."""
    theirs, _ = sequifier_and_ours
    project = type(theirs)(tmp_path / "project")
    shutil.copytree(theirs.root, project.root)
    path = project.root / "data" / "events-split0" / "metadata.json"
    path.write_text(path.read_text().replace('.pt"', '.parquet"'))
    config = project.train_config(**{**FIELDS, "global_training__read_format": "parquet"})
    with pytest.raises(DataError, match=r"is a table of Sequifier's windows; write it with write_format: pt"):
        survey(config)
