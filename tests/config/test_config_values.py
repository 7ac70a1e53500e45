"""What a loaded configuration is: defaults, frozen, equal after the way to a worker, light to import."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sequifier_ray.config import preprocess as preprocess_module
from sequifier_ray.config.base import NamedArguments
from sequifier_ray.config.document import document
from sequifier_ray.config.train import TrainConfig, ignored_settings

ROOT = Path(__file__).parents[2]


def test_defaults(train: Any, tmp_path: Path) -> None:
    config = train(("  optimizer: {name: AdamW, weight_decay: 0.1, betas: [0.9, 0.95]}\n", ""))
    settings = config.global_training
    assert settings.optimizer == NamedArguments(name="Adam")
    assert settings.scheduler == NamedArguments(name="StepLR", arguments={"step_size": 1, "gamma": 0.99})
    assert settings.updates_accumulate == 1
    assert (settings.shuffle_shards, settings.keep_checkpoints, settings.data_streams) == (8, 2, None)
    assert (settings.collective_timeout_s, settings.non_finite, config.seed) == (600, "stop", 1010)
    assert (settings.read_format, settings.backend, settings.resume.policy) == ("parquet", "nccl", "never")
    assert config.model.backbone.architecture.max_context_length == settings.context_length
    decoder = config.model.interface.decoder
    assert (decoder.type, decoder.prediction_length, decoder.support) == ("linear", 1, 1)
    assert (config.ray.placement_strategy, config.ray.max_failures, config.ray.resource_timeout_s) == (
        "PACK",
        3,
        600,
    )
    assert config.dataset.part.file_order == "shuffled"
    assert config.project_root == str(tmp_path)
    assert config.resolve("data/x") == f"{tmp_path}/data/x"
    assert config.resolve("/data/x") == "/data/x"


def test_preprocess_defaults(preprocess: Any, tmp_path: Path) -> None:
    config = preprocess()
    assert (config.read_format, config.write_format, config.merge_output) == ("csv", "parquet", True)
    assert (config.split_method, config.max_target_offset, config.seed) == ("within_sequence", 1, 1010)
    assert config.window_stride is None
    assert config.resolve("data") == f"{tmp_path}/data"


def test_flat_arguments(train: Any) -> None:
    config = train(
        (
            "world_size: 1",
            "scheduler: {name: CosineAnnealingLR, T_max: 10, eta_min: 1e-6}\n  accumulation_steps: 3",
        )
    )
    assert config.global_training.optimizer.name == "AdamW"
    assert config.global_training.optimizer.arguments == {"weight_decay": 0.1, "betas": [0.9, 0.95]}
    assert config.global_training.scheduler.arguments == {"T_max": 10, "eta_min": 1e-6}
    assert config.global_training.updates_accumulate == 3


def test_equal_after_the_way_to_a_worker(train: Any) -> None:
    plain = train()
    rich = train(
        ("world_size: 1", "resume: {policy: if_exists}\n  gradient_clip: 1.0\n  data_streams: 2"),
        ("  criterion", "  loss_weights: {kind: 0.5}\n  criterion"),
        ("dataset:", "ray: {resources_per_worker: {CPU: 2}, address: auto}\ndataset:"),
        ("num_layers: 2", "num_layers: 2\n      shared_layer_groups: [[0, 1]]"),
        (
            "target_columns: [kind]",
            "target_columns: [kind]\n    categorical_decoder_special_tokens: {kind: ['[other]']}",
        ),
    )
    assert rich != plain
    for config in (plain, rich):
        shipped = TrainConfig.model_validate(config.model_dump(mode="json"))
        assert shipped == config
        assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301  # our own bytes
        assert shipped.model_dump_json() == config.model_dump_json()


def test_frozen(train: Any, preprocess: Any) -> None:
    config = train()
    with pytest.raises(ValidationError, match="frozen"):
        config.global_training.batch_size = 5
    with pytest.raises(ValidationError, match="frozen"):
        preprocess().window_length = 5


def test_settings_without_effect_are_told(train: Any) -> None:
    assert ignored_settings(train()) == []
    given = "load_full_data_to_ram: false\n  max_ram_gb: 4\n  num_workers: 2"
    top = (
        "export_onnx: true\nexport_pt: true\nexport_embedding_model: true\nexport_generative_model: false\n"
        "export_with_dropout: true\nembedding_layer_names: [a]\ndataset:"
    )
    lines = ignored_settings(train(("world_size: 1", given), ("dataset:", top)))
    assert [line.split(" ")[0].rstrip(":") for line in lines] == [
        "global_training.load_full_data_to_ram",
        "global_training.max_ram_gb",
        "global_training.num_workers",
        "export_generative_model",
        "export_onnx",
        "export_pt",
        "export_embedding_model",
        "embedding_layer_names",
        "export_with_dropout",
    ]
    assert all("has no effect: " in line for line in lines)
    assert (
        ignored_settings(train(("dataset:", "export_onnx: false\nexport_generative_model: true\ndataset:")))
        == []
    )


def test_preprocess_settings_without_effect_are_told(preprocess: Any) -> None:
    given = "batches_per_file: 1024\nprocess_by_file: false\nwindow_length"
    lines = preprocess_module.ignored_settings(preprocess(("window_length", given)))
    assert [line.split(" ")[0].rstrip(":") for line in lines] == [
        "batches_per_file",
        "process_by_file",
    ]
    assert preprocess_module.ignored_settings(preprocess()) == []


def test_importing_and_reading_loads_nothing_heavy(train: Any, tmp_path: Path) -> None:
    train()
    names = ["load", "train", "model", "preprocess", "cluster", "document"]
    code = "import sys\n" + "\n".join(f"import sequifier_ray.config.{name}" for name in names)
    code += "\nheavy = {'torch', 'ray', 'polars', 'numpy', 'pyarrow'}\n"
    code += "found = heavy & set(sys.modules)\nassert not found, found\n"
    code += "sequifier_ray.config.load.load_train('train.yaml')\n"
    code += "found = {'torch', 'ray', 'polars'} & set(sys.modules)\nassert not found, found\n"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})


def test_the_committed_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == document(), "run `python -m sequifier_ray.config.document > docs/configuration.md`"


def test_every_field_is_described() -> None:
    empty = [line for line in document().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert empty == []
