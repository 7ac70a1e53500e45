#!/usr/bin/env bash
# What only a machine with a GPU can show: nccl, bf16, compile, FSDP, throughput. Needs the package installed, no network.
#     bash tests/gpu/run.sh [OUTPUT_FOLDER]        figures go to the output and to OUTPUT_FOLDER/figures.json
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python}" tests/gpu/check.py --out "${1:-gpu-figures}" "${@:2}"
