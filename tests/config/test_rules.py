"""Rules between fields, each broken once, at the line of the field that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from sequifier_ray.errors import ConfigError

DDP = "distributed: true\n  backend: gloo\n  data_parallelism: ddp"
FSDP = "distributed: true\n  backend: gloo\n  data_parallelism: fsdp"
SIZE = "world_size: 1"
DECODER = "target_columns: [kind]"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "dim_model: 8",
            "dim_model: 9",
            "train.yaml:17: model.backbone.architecture.dim_model: found 9; allowed: a multiple",
        ),
        (
            "dim_model: 8",
            "dim_model: 6\n      position_encoding: {type: rope}",
            "train.yaml:18: model.backbone.architecture.position_encoding.type: rope needs an even head "
            "width; dim_model 6 over 2 heads gives 3",
        ),
        (
            "n_heads: 2",
            "n_heads: 2, n_kv_heads: 1",
            "n_kv_heads: found 1; allowed with mha: n_heads (2) or null",
        ),
        (
            "n_heads: 2",
            "n_heads: 2, type: mqa, n_kv_heads: 2",
            "n_kv_heads: found 2; allowed with mqa: 1 or null",
        ),
        ("n_heads: 2", "n_heads: 2, type: gqa", "n_kv_heads: gqa needs it; allowed: a divisor of n_heads 2"),
        ("n_heads: 2", "n_heads: 4, type: gqa, n_kv_heads: 3", "found 3, which does not divide n_heads 4"),
        (
            "num_layers: 2",
            "num_layers: 2\n      shared_layer_groups: [[0, 2]]",
            "shared_layer_groups: found [[0, 2]]; allowed: layers 0 to 1, each in one group at most",
        ),
        (
            "num_layers: 2",
            "num_layers: 2\n      shared_layer_groups: [[0, 1], [1]]",
            "each in one group at most",
        ),
        (
            "kind: 6, size: 2",
            "kind: 6, size: 3",
            "train.yaml:24: model.interface.ingestion.feature_embedding_dims: the widths sum to "
            "9; allowed: output_dim 8",
        ),
        (
            "kind: 6, size: 2",
            "kind: 6, site: 2",
            "lacks ['size'] and names ['site'] besides; allowed: a width for each",
        ),
        (
            "output_dim: 8",
            "output_dim: 8, columns: [kind]",
            "ingestion.columns: found ['kind']; allowed: the input_columns",
        ),
        ("[kind, size]", "[kind, size, kind]", "input_columns: found ['kind'] more than once"),
        (
            DECODER,
            DECODER + "\n    categorical_decoder_special_tokens: {size: ['[other]']}",
            'categorical_decoder_special_tokens: found "size"; allowed: target_columns',
        ),
        (
            "context_length: 32",
            "context_length: 33",
            "train.yaml:7: global_training.context_length: found 33; "
            "allowed: at most model.backbone.architecture.max_context_length 32",
        ),
        (
            DECODER,
            DECODER + "\n    decoder: {prediction_length: 33}",
            "train.yaml:24: model.interface.decoder.prediction_length: found 33; allowed: 1 to "
            "global_training.context_length 32",
        ),
        (
            SIZE,
            "target_offset: 0",
            "target_offset: found 0; training_objective: causal predicts later events",
        ),
        (
            "model_name: demo",
            "model_name: a/b",
            'train.yaml:2: model_name: found "a/b"; allowed: a plain name',
        ),
        (
            "model_name: demo",
            "model_name: ''",
            'train.yaml:2: model_name: found ""; allowed: text that is not empty',
        ),
        (SIZE, "world_size: 2", "train.yaml:13: global_training.world_size: found 2 with distributed: false"),
        (
            SIZE,
            "distributed: true\n  backend: gloo",
            "data_parallelism: distributed: true needs it; allowed: ddp",
        ),
        (
            SIZE,
            "data_parallelism: ddp",
            "data_parallelism: found ddp with distributed: false; set distributed: true",
        ),
        (SIZE, FSDP, "fsdp_cpu_offload: data_parallelism: fsdp needs it; allowed: true"),
        (
            SIZE,
            DDP + "\n  fsdp_cpu_offload: false",
            "fsdp_cpu_offload: found false without data_parallelism: fsdp",
        ),
        (
            SIZE,
            "distributed: true\n  data_parallelism: ddp",
            "backend: nccl (the default) works between GPUs only, and device is cpu; set backend: gloo",
        ),
        (
            SIZE,
            DDP.replace("gloo", "nccl"),
            "train.yaml:14: global_training.backend: nccl works between GPUs only",
        ),
        (
            "torch_compile: none",
            FSDP + "\n  fsdp_cpu_offload: false",
            "torch_compile: outer (the default) does not work with data_parallelism: fsdp; "
            "set torch_compile: none or inner",
        ),
        (
            "torch_compile: none",
            FSDP + "\n  fsdp_cpu_offload: false\n  torch_compile: outer",
            "train.yaml:16: global_training.torch_compile: outer does not work with data_parallelism: fsdp",
        ),
        (
            "torch_compile: none",
            DDP + "\n  torch_compile: inner",
            "inner does not work with data_parallelism: ddp",
        ),
        (
            SIZE,
            DDP + "\n  read_format: csv",
            "read_format: found csv, a single file that processes cannot share; run preprocess "
            "with merge_output: false "
            "and write_format: pt or parquet",
        ),
        (
            "dataset:",
            "ray: {min_world_size: 2}\ndataset:",
            "train.yaml:25: ray.min_world_size: found 2; allowed: at most",
        ),
        (
            "{kind: CrossEntropyLoss}",
            "{size: MSELoss}",
            "dataset.criterion: lacks ['kind'] and names ['size'] besides",
        ),
        (
            "  criterion",
            "  loss_weights: {size: 1}\n  criterion",
            "dataset.loss_weights: names ['size']; allowed: target",
        ),
        (
            "  criterion",
            "  loss_weights: {kind: -1}\n  criterion",
            "loss_weights.kind: found -1; allowed: at least 0",
        ),
        ("  criterion", "  loss_weights: {kind: 0}\n  criterion", "loss_weights: all targets have weight 0"),
        (
            "evaluation: true\nglobal_training:",
            "global_training:\n  early_stopping_epochs: 2",
            "early_stopping_epochs: it follows the validation loss; set evaluation: true",
        ),
        (
            "weight_decay: 0.1",
            "lr: 0.1",
            "optimizer: found lr; the learning rate is global_training.learning_rate",
        ),
    ],
)
def test_train_rule(train: Any, old: str, new: str, text: str) -> None:
    edits = [(old, new)]
    if new == "context_length: 33":
        edits.append(("num_layers: 2", "num_layers: 2\n      max_context_length: 32"))
    with pytest.raises(ConfigError) as caught:
        train(*edits)
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("new", "text"),
    [
        ("write_format: pt\n", "merge_output: found true; write_format: pt is written as a folder of shards"),
        (
            "write_format: csv\nmerge_output: false\n",
            "preprocess.yaml:5: merge_output: found false; write_format: csv",
        ),
        ("max_target_offset: 33\n", "max_target_offset: found 33; allowed: less than window_length 33"),
        (
            "split_values: [3]\n",
            "split_values: within_sequence does not use it; remove it or set split_method",
        ),
        ("split_method: value_cutoff\n", "split_ratios: value_cutoff takes its splits from split_values"),
        (
            "categorical_columns: [a, b]\nreal_columns: [b]\n",
            "real_columns: found ['b'], also in categorical_columns",
        ),
        ("selected_columns: [a, a]\n", "selected_columns: found ['a'] more than once"),
        (
            "selected_columns: [a, b, sequenceId]\ncolumn_data_types: {a: Int64}\n",
            "preprocess.yaml:5: column_data_types: lacks ['b']; if set, it names every processed column",
        ),
        (
            "column_data_types: {a: Utf8}\n",
            "preprocess.yaml:4: column_data_types.a: found Utf8; allowed: Int8, Int16, Int32, Int64, UInt8, ",
        ),
        (
            "real_columns: [a]\ncolumn_data_types: {a: Int64}\n",
            "column_data_types.a: found Int64 for a column that real_columns names; allowed: Float32 or "
            "Float64",
        ),
        (
            "categorical_columns: [a]\ncolumn_data_types: {a: Float32}\n",
            "column_data_types.a: found Float32 for a column that categorical_columns names; allowed: an "
            "integer",
        ),
        (
            "missing_indicator: true\n",
            "missing_indicator: found true, but missing_real: error refuses missing values; set "
            "missing_real: mean",
        ),
        (
            "mask_column: m\n",
            "mask_column: found m; masking needs maps and statistics of an unmasked run: set "
            "metadata_config_path",
        ),
        (
            "sequence_id_column: at\nitem_position_column: at\n",
            "item_position_column: found at, which is sequence_id_column too; name two columns",
        ),
        (
            "cardinality_config: {a: {}}\n",
            "cardinality_config.a.top_k: set exactly one of top_k and min_freq",
        ),
        (
            "cardinality_config: {a: {top_k: 0}}\n",
            "preprocess.yaml:4: cardinality_config.a.top_k: found 0; allowed: at least 1",
        ),
        (
            "cardinality_config: {a: {topk: 4}}\n",
            'unknown field "cardinality_config.a.topk" (did you mean "top_k"?)',
        ),
        (
            "cardinality_config: {a: {top_k: 4}}\nreal_columns: [a]\n",
            "cardinality_config.a: a is also in real_columns; keep one of the two",
        ),
        (
            "cardinality_config: {a: {top_k: 4}}\nmetadata_config_path: x.json\n",
            "cardinality_config: the vocabularies come from metadata_config_path; remove one of the two",
        ),
        ("use_precomputed_maps: [a/b]\n", "use_precomputed_maps: found 'a/b'; a column with a / in its name"),
        (
            "csv: {separator: ab}\n",
            "preprocess.yaml:4: csv.separator: found 'ab'; allowed: one ASCII character",
        ),
        ("csv: {decimal: ',', separator: ','}\n", "csv.separator: found ',', which is also quote or decimal"),
        *(
            (
                f"csv: {{encoding: {name}}}\n",
                f"csv.encoding: found '{name}'; allowed: an encoding, such as utf-8",
            )
            for name in ("ebcdic1", "rot13", "base64", "zip", "hex", "undefined")
        ),
        (
            "cardinality_config: {c: {top_k: 1, hashing: {num_buckets: 1000000000000}}}\n",
            "cardinality_config.c.hashing.num_buckets: found 1000000000000; allowed: below 2e+09",
        ),
        (
            "read_format: parquet\ncsv: {separator: ','}\n",
            "preprocess.yaml:5: csv: describes CSV files, but read_format is parquet; remove it",
        ),
    ],
)
def test_preprocess_rule(preprocess: Any, new: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preprocess(("window_length", new + "window_length"))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (
            "split_ratios: [0.8, 0.1]",
            "split_ratios: found [0.8, 0.1] with sum 0.9; allowed: positive numbers",
        ),
        (
            "split_ratios: [1.2, -0.2]",
            "split_ratios: found [1.2, -0.2] with sum 1; allowed: positive numbers",
        ),
        ("split_ratios: [0.8, 0.200002]", "allowed: positive numbers that sum to 1"),
        ("split_ratios: []", "allowed: positive numbers that sum to 1"),
        ("split_ratios: [a]", 'preprocess.yaml:3: split_ratios.0: found "a"; allowed: a number'),
        ("", "split_ratios: within_sequence needs it, such as [0.8, 0.1, 0.1]"),
        ("split_method: between_sequence", "split_ratios: between_sequence needs it"),
        (
            "split_method: value_cutoff\nsplit_values: [1]",
            "split_column: split_method: value_cutoff needs it",
        ),
        ("split_method: value_cutoff\nsplit_column: a", "split_values: split_method: value_cutoff needs it"),
        ("split_values: [2, 1]", "split_values: found [2, 1]; allowed: strictly increasing boundaries"),
        ("split_values: [1, 1]", "found [1, 1]; allowed: strictly increasing"),
        (
            "split_values: [2024-02-01, 2024-01-01]",
            "found ['2024-02-01 00:00:00', '2024-01-01 00:00:00']; allowed",
        ),
        ("split_values: [2024-02-01, 5]", "mixes integers and timestamps"),
        (
            "split_values: [soon]",
            "split_values: found ['soon']; allowed: a list of integers, or of timestamps",
        ),
        ("split_values: 3", "split_values: found 3; allowed: a list of integers"),
        ("split_values: [true]", "split_values: found [True]; allowed: a list of integers"),
    ],
)
def test_split_rule(preprocess: Any, new: str, text: str) -> None:
    if new.startswith("split_values"):
        new = f"split_method: value_cutoff\nsplit_column: a\n{new}"
    with pytest.raises(ConfigError) as caught:
        preprocess(("split_ratios: [0.8, 0.2]", new))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        "[3, 9, 12]",
        "[2024-01-01, 2024-02-01 10:00:00]",
        "['2024-01-01T00:00:00Z', '2024-01-02T00:00:00+01:00']",
    ],
)
def test_value_cutoff_takes_integers_and_timestamps(preprocess: Any, values: str) -> None:
    new = f"split_method: value_cutoff\nsplit_column: a\nsplit_values: {values}"
    config = preprocess(("split_ratios: [0.8, 0.2]", new))
    assert config.split_ratios is None
    assert len({type(value) for value in config.split_values}) == 1


def test_ratios_may_miss_one_by_rounding(preprocess: Any) -> None:
    assert preprocess(("[0.8, 0.2]", "[0.7, 0.2, 0.1]")).split_ratios == (0.7, 0.2, 0.1)


@pytest.mark.parametrize(
    ("attention", "kv_heads"),
    [("n_heads: 4", 4), ("n_heads: 4, type: mqa", 1), ("n_heads: 4, type: gqa, n_kv_heads: 2", 2)],
)
def test_kv_heads(train: Any, attention: str, kv_heads: int) -> None:
    assert train(("n_heads: 2", attention)).model.backbone.architecture.attention.kv_heads == kv_heads


def test_what_two_processes_need(train: Any) -> None:
    for extra in (DDP, f"{FSDP}\n  fsdp_cpu_offload: true"):
        config = train(
            (SIZE, f"{extra}\n  world_size: 2"), ("dataset:", "ray: {min_world_size: 2}\ndataset:")
        )
        assert config.global_training.world_size == 2
        assert config.ray.min_world_size == 2
