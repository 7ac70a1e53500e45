"""Time `preprocess` on ten copies of the flights data, beside Sequifier's where its CLI is given, beside
itself on a hundred copies, and beside its Ray engine.

    python tests/benchmarks/preprocess.py [--sequifier PATH/TO/sequifier] [--copies 10] [--large 100] [--ray]

All run as their own process, start-up included, one after the other on the same machine; the best of
`repeats` runs counts for us, a single run for Sequifier and for Ray. Prints a table and, as the last line,
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet
import yaml

FLIGHTS = Path(__file__).parents[1] / "data" / "flights.parquet"
SETTINGS: dict[str, Any] = {
    "project_root": ".",
    "preprocessing_data_path": "flights.parquet",
    "read_format": "parquet",
    "write_format": "pt",
    "merge_output": False,
    "split_method": "within_sequence",
    "split_ratios": [0.8, 0.1, 0.1],
    "window_length": 33,
    "window_stride": 8,
    "max_target_offset": 1,
    "seed": 1010,
}
OURS = [sys.executable, "-m", "sequifier_ray", "preprocess"]


def make_project(folder: Path, copies: int) -> int:
    """Write the configuration and the input: copies of flights, sequenceId offset per copy; its rows."""
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "preprocess.yaml").write_text(yaml.safe_dump(SETTINGS))
    flights = pl.read_parquet(FLIGHTS)
    offset = int(flights["sequenceId"].max()) + 1  # type: ignore[arg-type]
    schema = flights.to_arrow().schema
    with pyarrow.parquet.ParquetWriter(folder / "flights.parquet", schema) as writer:
        for copy in range(copies):
            writer.write_table(flights.with_columns(pl.col("sequenceId") + copy * offset).to_arrow())
    return copies * len(flights)


def measure(command: list[str], folder: Path) -> dict[str, float]:
    """Seconds, peak memory and bytes of split 0 of one run."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    complaints = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{command} failed:\n{complaints.decode()}")
    files = (folder / "data" / "flights-split0").iterdir()
    return {
        "seconds": seconds,
        "split0_bytes": sum(file.stat().st_size for file in files),
        "peak_rss_mib": usage.ru_maxrss / 1024,
    }


def best(command: list[str], folder: Path, repeats: int) -> dict[str, float]:
    """The fastest of some runs."""
    return min((measure(command, folder) for _ in range(repeats)), key=lambda run: run["seconds"])


def show(name: str, run: dict[str, float], rows: int) -> None:
    """One line of the table."""
    print(
        f"{name:>22}: {run['seconds']:6.2f} s, {rows / run['seconds']:>12,.0f} rows/s, "
        f"split 0 {run['split0_bytes'] / 1e6:6.1f} MB, peak {run['peak_rss_mib']:,.0f} MiB"
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sequifier", help="the CLI of an installed sequifier 3.1.1.0")
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--large", type=int, default=0, help="copies of a second, larger table")
    parser.add_argument("--ray", action="store_true", help="also the Ray engine, on a local instance")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"copies": arguments.copies, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as temporary:
        ours, theirs, large = (Path(temporary, name) for name in ("ours", "theirs", "large"))
        rows = result["rows"] = make_project(ours, arguments.copies)
        result["ours"] = best(OURS, ours, arguments.repeats)
        show("sequifier-ray", result["ours"], rows)
        if arguments.sequifier:
            make_project(theirs, arguments.copies)
            command = [arguments.sequifier, "preprocess", "--config-path", "configs/preprocess.yaml"]
            result["sequifier"] = measure(command, theirs)
            show("Sequifier", result["sequifier"], rows)
            result["speed_ratio"] = result["sequifier"]["seconds"] / result["ours"]["seconds"]
            result["bytes_ratio"] = result["sequifier"]["split0_bytes"] / result["ours"]["split0_bytes"]
            print(
                f"ratio: {result['speed_ratio']:.1f} × the rows/s, 1/{result['bytes_ratio']:.1f} of the bytes"
            )
        if arguments.ray:
            result["ray"] = measure([*OURS, "--engine", "ray"], ours)
            show("sequifier-ray on Ray", result["ray"], rows)
        if arguments.large:
            large_rows = make_project(large, arguments.large)
            result["large"] = best(OURS, large, arguments.repeats)
            show(f"{arguments.large} copies", result["large"], large_rows)
            per_row = result["ours"]["seconds"] / rows
            result["row_time_ratio"] = result["large"]["seconds"] / large_rows / per_row
            print(f"ratio: {result['row_time_ratio']:.2f} × the time per row of {arguments.copies} copies")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
