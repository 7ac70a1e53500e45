"""What the sources promise: small modules and functions, layers, and a light start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sequifier_ray"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


def test_no_module_is_long_and_none_is_a_box_for_the_rest() -> None:
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}
    assert [name for name in lengths if Path(name).stem in ("utils", "util", "helpers", "misc")] == []


def test_no_function_is_long() -> None:
    long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(PACKAGE)}: {node.name}")
    assert long == []


def test_only_one_module_names_the_wrappers_and_only_launch_reads_ranks() -> None:
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in MODULES}
    wrappers = [
        name for name, text in texts.items() if "DistributedDataParallel" in text or "fully_shard(" in text
    ]
    assert wrappers == ["train/parallel.py"]
    ranks = [name for name, text in texts.items() if '"RANK"' in text or '"LOCAL_RANK"' in text]
    assert ranks
    assert all(name.startswith("launch/") for name in ranks)


def test_threads_parse_no_headers_of_numpy() -> None:
    """`np.load` parses headers with `ast`, where CPython 3.11 raises SystemError now and then if two threads
    do it at once."""
    for path in PACKAGE.rglob("*.py"):
        assert not any(name in path.read_text() for name in ("np.load(", "np.save(", "np.savez(")), path


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("sequifier_ray.config.load", "torch ray polars numpy pyarrow"),
        ("sequifier_ray.storage", "torch ray polars numpy pyarrow"),
        ("sequifier_ray.cli", "torch ray polars numpy pyarrow pydantic yaml rich"),
        ("sequifier_ray.data.order", "ray polars torch.distributed"),
    ],
)
def test_what_a_module_does_not_load(module: str, forbidden: str) -> None:
    text = f"import {module}, sys; print(*(n for n in {forbidden.split()} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_help_loads_nothing_heavy() -> None:
    text = "import sys; from sequifier_ray.cli import main; main(['--help']); print('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    shown, _, loaded = done.stdout.partition("loaded: ")
    assert "preprocess" in shown
    assert not {"torch", "ray", "polars", "numpy", "pyarrow", "pydantic", "yaml"} & set(loaded.split())


def test_the_model_is_plain_torch() -> None:
    for path in (PACKAGE / "model").glob("*.py"):
        assert "torch.distributed" not in path.read_text(), path.name
