"""The configurations that we ship: the demo's, and the repository's examples, which differ in one path."""

from __future__ import annotations

from pathlib import Path

from sequifier_ray.config.load import load_preprocess, load_train
from sequifier_ray.project import make_project

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "sequifier_ray" / "demo"


def test_examples_are_the_demo_with_another_input() -> None:
    ours = load_preprocess(str(ROOT / "configs" / "preprocess.yaml"))
    demo = load_preprocess(str(DEMO / "preprocess.yaml"))
    assert ours.preprocessing_data_path == "sequifier_ray/demo/flights.parquet"
    assert ours.model_copy(update={"preprocessing_data_path": demo.preprocessing_data_path}) == demo
    assert load_train(str(ROOT / "configs" / "train.yaml")) == load_train(str(DEMO / "train.yaml"))


def test_the_demo_trains_two_processes_without_a_gpu() -> None:
    config = load_train(str(DEMO / "train.yaml"))
    training = config.global_training
    assert (config.device, training.backend, training.data_parallelism) == ("cpu", "gloo", "ddp")
    assert (training.distributed, training.world_size) == (True, 2)


def test_the_demo_views_fit_the_demo_windows() -> None:
    stored = load_preprocess(str(DEMO / "preprocess.yaml"))
    training = load_train(str(DEMO / "train.yaml")).global_training
    assert training.context_length + stored.max_target_offset <= stored.window_length
    assert training.target_offset <= stored.max_target_offset
    assert training.read_format == stored.write_format


def test_templates_are_valid_once_filled_in(tmp_path: Path) -> None:
    make_project(str(tmp_path / "mine"), demo=False)
    configs = tmp_path / "mine" / "configs"
    stored = load_preprocess(
        str(configs / "preprocess.yaml"), {"preprocessing_data_path": "data/events.parquet"}
    )
    filled = {
        "model_name": "mine",
        "dataset.part.metadata_config_path": "configs/metadata_configs/events.json",
        "dataset.criterion": {"product": "CrossEntropyLoss"},
        "model.interface.input_columns": ["product"],
        "model.interface.target_columns": ["product"],
    }
    training = load_train(str(configs / "train.yaml"), filled).global_training
    assert training.context_length + stored.max_target_offset <= stored.window_length
    assert training.read_format == stored.write_format
