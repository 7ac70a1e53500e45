"""Time `preprocess` on ten copies of the flights data, beside Sequifier's where its CLI is given.

    python tests/benchmarks/preprocess.py [--sequifier PATH/TO/sequifier] [--copies 10] [--repeats 3]

Both run as their own process, start-up included, one after the other on the same machine; the best of
`repeats` runs counts for us, a single run for Sequifier. Prints a table and, as the last line, one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
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
OURS = """
import sys
from sequifier_ray.config.load import load_preprocess
from sequifier_ray.preprocess.pipeline import preprocess
preprocess(load_preprocess(sys.argv[1]), print)
"""


def make_project(folder: Path, copies: int) -> int:
    """Write the configuration and the input: copies of flights, sequenceId offset per copy; its rows."""
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "preprocess.yaml").write_text(yaml.safe_dump(SETTINGS))
    flights = pl.read_parquet(FLIGHTS)
    offset = int(flights["sequenceId"].max()) + 1  # type: ignore[arg-type]
    tables = [flights.with_columns(pl.col("sequenceId") + copy * offset) for copy in range(copies)]
    pl.concat(tables).write_parquet(folder / "flights.parquet")
    return copies * len(flights)


def measure(command: list[str], folder: Path) -> dict[str, float]:
    """Seconds, peak memory and bytes of split 0 of one run."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    files = (folder / "data" / "flights-split0").iterdir()
    return {
        "seconds": seconds,
        "split0_bytes": sum(file.stat().st_size for file in files),
        "peak_rss_mib": peak_kib / 1024,
    }


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sequifier", help="the CLI of an installed sequifier 3.1.1.0")
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"copies": arguments.copies, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as temporary:
        ours, theirs = Path(temporary, "ours"), Path(temporary, "theirs")
        result["rows"] = make_project(ours, arguments.copies)
        command = [sys.executable, "-c", OURS, "configs/preprocess.yaml"]
        runs = [measure(command, ours) for _ in range(arguments.repeats)]
        result["ours"] = min(runs, key=lambda run: run["seconds"])
        if arguments.sequifier:
            make_project(theirs, arguments.copies)
            command = [arguments.sequifier, "preprocess", "--config-path", "configs/preprocess.yaml"]
            result["sequifier"] = measure(command, theirs)
            result["speed_ratio"] = result["sequifier"]["seconds"] / result["ours"]["seconds"]
            result["bytes_ratio"] = result["sequifier"]["split0_bytes"] / result["ours"]["split0_bytes"]
    for name in ("ours", "sequifier"):
        if run := result.get(name):
            print(
                f"{name:>9}: {run['seconds']:6.2f} s, {result['rows'] / run['seconds']:>12,.0f} rows/s, "
                f"split 0 {run['split0_bytes'] / 1e6:6.1f} MB, peak {run['peak_rss_mib']:,.0f} MiB"
            )
    if "speed_ratio" in result:
        print(
            f"    ratio: {result['speed_ratio']:.1f} × the rows/s, 1/{result['bytes_ratio']:.1f} of the bytes"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
