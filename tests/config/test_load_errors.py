"""What a mistyped file is answered with: file, line, field, value found, what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequifier_ray.config.load import load_preprocess, load_train
from sequifier_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "  batch_size: 4",
            "  batch_size: 4\n  batchsize: 4",
            'train.yaml:9: unknown field "global_training.batchsize" '
            '(did you mean "batch_size" or "inference_batch_size"?)',
        ),
        (
            "  batch_size: 4",
            "  batch_size: 4\n  n_heads: 4",
            'train.yaml:9: unknown field "global_training.n_heads" here; '
            "it belongs in model.backbone.architecture.attention.n_heads",
        ),
        ("seed", "seed", ""),
        (
            "  batch_size: 4\n",
            "",
            'train.yaml:5: "global_training.batch_size" is missing (Samples per process',
        ),
        (
            "batch_size: 4",
            "batch_size: four",
            'train.yaml:8: global_training.batch_size: found "four"; allowed: an integer',
        ),
        (
            "batch_size: 4",
            "batch_size: 4.5",
            "train.yaml:8: global_training.batch_size: found 4.5; allowed: an integer",
        ),
        (
            "batch_size: 4",
            "batch_size: yes",
            "train.yaml:8: global_training.batch_size: found true; allowed: an integer",
        ),
        ("batch_size: 4", "batch_size: 0", "global_training.batch_size: found 0; allowed: at least 1"),
        ("batch_size: 4", "batch_size: null", "global_training.batch_size: found null; allowed: an integer"),
        pytest.param(
            "batch_size: 4",
            f"batch_size: 0x{5000 * 'f'}",
            "found an integer of 20,000 bits; allowed: below 2^63",
            id="too long to write out",
        ),
        (
            "batch_size: 4",
            f"batch_size: {10**30}",
            f"global_training.batch_size: found {10**30}; allowed: below 2^63",
        ),
        ("device: cpu", f"device: cpu\nseed: {2**63}", f"seed: found {2**63}; allowed: below 2^63"),
        ("device: cpu", f"device: cpu\nseed: {-(2**63) - 1}", "allowed: at least -2^63"),
        ("world_size: 1", f"keep_checkpoints: {2**63}", "keep_checkpoints: found 9"),
        ("world_size: 1", f"target_offset: {2**63}", "allowed: below 2^63"),
        ("epochs: 2}", f"epochs: 2}}\nray: {{max_failures: {2**64}}}", "allowed: below 2^63"),
        ("1e-3", "0", "train.yaml:10: global_training.learning_rate: found 0; allowed: above 0"),
        ("1e-3", ".nan", "global_training.learning_rate: found nan; allowed: a finite number"),
        ("1e-3", "fast", 'global_training.learning_rate: found "fast"; allowed: a number'),
        ("evaluation: true", "evaluation: 1", "train.yaml:4: evaluation: found 1; allowed: true or false"),
        ("device: cpu", "device: tpu", 'train.yaml:3: device: found "tpu"; allowed: cpu or cuda'),
        ("torch_compile: none", "torch_compile: no", "found false; allowed: outer, inner or none"),
        ("world_size: 1", "gradient_clip: big", 'gradient_clip: found "big"; allowed: a number, or null'),
        ("world_size: 1", "keep_checkpoints: 1", "keep_checkpoints: found 1; allowed: at least 2"),
        ("world_size: 1", "non_finite: ignore", 'non_finite: found "ignore"; allowed: stop or skip'),
        ("n_heads: 2", "n_heads: 2, type: mla", 'found "mla"; allowed: mha, mqa or gqa'),
        (
            "[kind, size]",
            "kind",
            'train.yaml:22: model.interface.input_columns: found "kind"; allowed: a list',
        ),
        (
            "[kind, size]",
            "[kind, 3]",
            "train.yaml:22: model.interface.input_columns.1: found 3; allowed: text",
        ),
        ("target_columns: [kind]", "target_columns: []", "allowed: a list with at least one entry"),
        (
            "{epochs: 2}",
            "2",
            "train.yaml:28: training_plan: found 2; allowed: a section (`field: value` on each line)",
        ),
        (
            "{name: AdamW, weight_decay: 0.1, betas: [0.9, 0.95]}",
            "AdamW",
            'train.yaml:11: global_training.optimizer: found "AdamW"; allowed: a name and its arguments',
        ),
        ("name: AdamW, ", "", 'train.yaml:11: "global_training.optimizer.name" is missing'),
        (
            "0.1, betas",
            "{a: 1}, betas",
            "optimizer.arguments.weight_decay: found {'a': 1}; allowed: a number, text",
        ),
        (
            "batch_size: 4",
            "batch_size: 4\n  batch_size: 5",
            '"global_training.batch_size" is set twice, first on line 8',
        ),
        (
            "kind: CrossEntropyLoss",
            "yes: MSELoss",
            'found yes as a field name in "dataset.criterion"; names are text',
        ),
        (
            "kind: Cross",
            "[a]: 2, kind: Cross",
            'train.yaml:27: found a list as a field name in "dataset.criterion"',
        ),
        ("kind: Cross", "{a: b}: 2, kind: Cross", "found a mapping as a field name"),
        (
            "project_root: .",
            "project_root: http://bucket/run",
            "project_root: found http://bucket/run; allowed: a folder",
        ),
        (
            "project_root: .",
            "project_root: s3://AKIA1:secret@bucket/run",
            "project_root: found s3://***: keys have no place in an address",
        ),
        (
            "project_root: .",
            "ray: {resources_per_worker: {CPU: 0.00001}}\nproject_root: .",
            "ray.resources_per_worker.CPU: found 1e-05; allowed: 0, or at least 0.0001",
        ),
        (
            "project_root: .",
            "ray: {resources_per_worker: {GPU: 1.5}}\nproject_root: .",
            "ray.resources_per_worker.GPU: found 1.5; allowed: up to 1, or a whole number",
        ),
        ("device: cpu", "device: [cpu", "train.yaml:4: not valid YAML: expected ',' or ']', but got ':'"),
        ("device: cpu", "device:\tcpu\n\tseed: 1", "train.yaml:3: not valid YAML: found character"),
        ("model:", "model: &m", ""),
        (
            "training_plan: {epochs: 2}",
            "training_plan: &p {epochs: 2, phases: *p}",
            "train.yaml:28: this section holds itself",
        ),
    ],
)
def test_train_error(train: Any, old: str, new: str, text: str) -> None:
    if not text:
        edits = () if old == new else ((old, new),)
        train(*edits)
        return
    with pytest.raises(ConfigError) as caught:
        train((old, new))
    assert text in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_problems_in_one_text(train: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        train(("batch_size: 4", "batch_size: a"), ("device: cpu", "device: b"))
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == [
        "train.yaml:3:",
        "train.yaml:8:",
    ]


def test_a_mistyped_required_field_is_one_problem(train: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        train(("  batch_size", "  batchsize"))
    assert str(caught.value) == (
        'train.yaml:8: unknown field "global_training.batchsize" '
        '(did you mean "batch_size" or "inference_batch_size"?)'
    )


def test_many_known_fields_are_told_where_none_is_near(train: Any) -> None:
    with pytest.raises(ConfigError, match=r'unknown field "training_plan.xyzzy"; known here are epochs$'):
        train(("epochs: 2", "epochs: 2, xyzzy: 1"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "c.yaml:1: the file is empty; `sequifier-ray make NAME` writes a template"),
        ("# only a comment\n", "c.yaml:1: the file is empty"),
        ("\n- a\n- b\n", "c.yaml:2: the file is not a mapping; allowed: lines of `field: value`"),
        ("a: 2024-13-45\n", "c.yaml: not valid YAML: month must be in 1..12"),
        pytest.param(
            "a: 1\nb: " + 60 * "[" + 60 * "]",
            "c.yaml:2: nested too deeply; allowed: at most 50 levels",
            id="deep",
        ),
        pytest.param(
            "a: 1\nb: " + 9999 * "[" + 9999 * "]",
            "c.yaml:2: nested too deeply; allowed: at most 50 levels",
            id="deeper than Python",
        ),
        pytest.param(
            "a0: &a0 [1, 2, 3]\n"
            + "".join(f"a{i}: &a{i} [{', '.join(9 * [f'*a{i - 1}'])}]\n" for i in range(1, 9)),
            "c.yaml:1: more than 200,000 values, each use of an alias (*) counted; write less",
            id="aliases of aliases",
        ),
        ("a: &a {<<: *a}\n", "c.yaml:1: this section holds itself"),
        ("a: {<<: 3}\n", "c.yaml:1: not valid YAML: expected a mapping or list of mappings for merging"),
        ("a: \x00\n", "c.yaml:1: not valid YAML: "),
        (b"a: \xff\n", "c.yaml is not UTF-8 text (byte 3)"),
        (None, "c.yaml does not exist; name the configuration with --config-path"),
    ],
)
def test_file_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes | None, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("c.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    for load in (load_train, load_preprocess):
        with pytest.raises(ConfigError) as caught:
            load("c.yaml")
        assert str(caught.value).startswith(text)


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}"):
        load_train(str(tmp_path))


UNSUPPORTED_TRAIN = [
    ("training_objective: causal", "training_objective: bert", 6, "global_training.training_objective: bert"),
    ("objective: causal", "objective: final_value", 6, "global_training.training_objective: final_value"),
    ("world_size: 1", "layer_type_dtypes: {linear: bfloat16}", 13, "global_training.layer_type_dtypes"),
    ("world_size: 1", "bert_spec: {masking_probability: 0.2}", 13, "global_training.bert_spec"),
    ("name: AdamW,", "name: AdamW, groups: [1],", 11, "global_training.optimizer.groups"),
    ("output_dim: 8", "output_dim: 8, type: grouped", 24, "model.interface.ingestion.type: grouped"),
    (
        "n_heads: 2}",
        "n_heads: 2}\n      position_encoding: {type: range}",
        20,
        "position_encoding.type: range",
    ),
    (
        "target_columns: [kind]",
        "target_columns: [kind]\n    decoder: {type: composite}",
        24,
        "decoder.type: composite",
    ),
    ("target_columns: [kind]", "target_columns: [kind]\n    decoder: {support: 2}", 24, "decoder.support: 2"),
    (
        "target_columns: [kind]",
        "target_columns: [kind]\n    feature_layout: {a: 1}",
        24,
        "model.interface.feature_layout",
    ),
    ("  backbone:", "  backbone:\n    initialization_std: 0.1", 16, "model.backbone.initialization_std"),
    ("  criterion", "  class_weights: {kind: [1]}\n  criterion", 27, "dataset.class_weights"),
    ("  criterion", "  freeze: [a]\n  criterion", 27, "dataset.freeze"),
    ("{epochs: 2}", "{phases: [1]}", 28, "training_plan.phases"),
    ("evaluation: true", "evaluation: {source: a}", 4, "evaluation with settings of its own"),
]


@pytest.mark.parametrize(("old", "new", "line", "name"), UNSUPPORTED_TRAIN)
def test_unsupported_in_train(train: Any, old: str, new: str, line: int, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train((old, new))
    text = str(caught.value)
    assert text.startswith(f'train.yaml:{line}: "')
    assert f'{name}" is not supported yet' in text


@pytest.mark.parametrize(
    "field",
    [
        "window_lengths: [3]",
        "prediction_aligned_splits: true",
        "prediction_alignment_steps: 3",
        "prediction_length: 3",
        "target_offset: 1",
        "allow_sequence_splitting: true",
        "depth_layouts: {a: 1}",
    ],
)
def test_unsupported_in_preprocess(preprocess: Any, field: str) -> None:
    name = field.split(":")[0]
    with pytest.raises(ConfigError, match=f'^preprocess.yaml:4: "{name}" is not supported yet'):
        preprocess(("window_length", f"{field}\nwindow_length"))


def test_unsupported_fields_that_ask_for_nothing_are_as_good_as_absent(train: Any, preprocess: Any) -> None:
    plain = train()
    assert train(("world_size: 1", "layer_type_dtypes: null\n  bert_spec: {}")) == plain
    empty = "prediction_length: null\ndepth_layouts: {}\nallow_sequence_splitting: false\nwindow_length"
    assert preprocess(("window_length", empty)) == preprocess()


def test_single_entries_are_unwrapped(train: Any) -> None:
    plain = train()
    wrapped = train(
        ("  interface:\n", "  interfaces:\n   main:\n"),
        ("dataset:\n  part:", "dataset_training:\n main:\n  part:"),
    )
    assert wrapped == plain
    with pytest.raises(ConfigError, match=r'^train.yaml:23: unknown field "model.interface.input_colums"'):
        train(("  interface:\n", "  interfaces:\n   main:\n"), ("input_columns", "input_colums"))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "dataset:",
            "dataset_training: {a: {}, b: {}}\nold:",
            '"dataset_training" with several entries (a, b) is not supported yet; keep one',
        ),
        (
            "dataset:",
            "dataset_training: {a: {}}\ndataset:",
            'found both "dataset_training" and "dataset"; keep one',
        ),
        ("  interface:", "  interfaces: [a]\n  old:", "model.interfaces: found ['a']; allowed: one entry"),
    ],
)
def test_unwrapping_error(train: Any, old: str, new: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train((old, new))
    assert text in str(caught.value)


def test_overrides_are_checked_like_the_file(train: Any, preprocess: Any) -> None:
    changed = train(overrides={"global_training.batch_size": 16, "ray.max_failures": 0})
    assert changed.global_training.batch_size == 16
    assert changed.ray.max_failures == 0
    assert changed.global_training.inference_batch_size == 8
    with pytest.raises(
        ConfigError, match=r"^command line: global_training.batch_size: found 0; allowed: at least 1$"
    ):
        train(overrides={"global_training.batch_size": 0})
    with pytest.raises(ConfigError, match=r'^command line: unknown field "selected_colums" \(did you mean'):
        preprocess(overrides={"selected_colums": ["a"]})
    with pytest.raises(ConfigError, match=r'^command line: "depth_layouts" is not supported yet'):
        preprocess(overrides={"depth_layouts": "a"})
    assert preprocess(overrides={"selected_columns": ["a", "b"]}).selected_columns == ("a", "b")


def test_a_merged_field_is_named_where_it_stands(train: Any) -> None:
    edits = [
        ("project_root: .", "x: &x {n_heads: two, typ: mha}\nproject_root: ."),
        ("{n_heads: 2}", "{<<: *x}"),
    ]
    with pytest.raises(ConfigError) as caught:
        train(*edits)
    field = "model.backbone.architecture.attention"
    lines = str(caught.value).splitlines()
    assert lines[0] == f'train.yaml:1: {field}.n_heads: found "two"; allowed: an integer'
    assert lines[1].startswith(f'train.yaml:1: unknown field "{field}.typ" (did you mean "type"?)')
    edits = [("[kind, size]", "[kind, size]\n    <<: [{decoder: {dropout: 3}}, {decoder: {}, seed: 1}]")]
    with pytest.raises(ConfigError, match=r'^train.yaml:23: unknown field "model.interface.seed"'):
        train(*edits)


def test_yaml_numbers(train: Any) -> None:
    for text, value in (
        ("1e-3", 0.001),
        ("1E-3", 0.001),
        ("1.5e-3", 0.0015),
        ("1", 1.0),
        (".5", 0.5),
        ("+2.", 2.0),
    ):
        assert train(("1e-3", text)).global_training.learning_rate == value
    merged = train(("{epochs: 2}", "&plan {epochs: 3}"), ("dataset:", "dataset:"))
    assert merged.training_plan.epochs == 3
