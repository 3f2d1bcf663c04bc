#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one run of a few minutes: tests marked gpu (the torch target on CUDA among
# them), the acceptance kernels against the measured copy bandwidth, a TensorRT engine against the torch executor, and
# TensorRT-LLM where it imports. Each section runs even if an earlier one failed; the exit code says if all succeeded.
# A section that has nothing to run on says so in one line and is no failure: TensorRT-RTX does not run on Hopper and
# datacenter Blackwell, full TensorRT does where it is installed.
#
#   benchmarks/gpu.sh [OUT]      writes OUT/*.json and OUT/gpu.log (default: benchmarks/gpu-results)
#
# Uses PYTHON (default: .venv/bin/python, else python3), in which trtlookup and its "cuda" extra are installed.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/gpu-results}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
mkdir -p "$out"
failed=()

section() { # name, seconds, command...
    local name=$1 limit=$2 status
    shift 2
    echo "== $name"
    timeout "$limit" "$@" 2>&1 | tee -a "$out/gpu.log"
    status=${PIPESTATUS[0]}
    case $status in
        0) ;;
        77) echo "== $name: nothing to run on, skipped" ;;
        124)
            echo "== $name FAILED: not done in $limit s"
            failed+=("$name")
            ;;
        *)
            echo "== $name FAILED"
            failed+=("$name")
            ;;
    esac
}

if ! reason=$("$python" -c 'from trtplugins.launch import require_device; require_device()' 2>&1); then
    echo "no NVIDIA GPU is usable from $python, nothing was run: ${reason##*$'\n'}" >&2
    exit 1
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null | tee "$out/device.csv"
section "tests marked gpu" 150 "$python" -m pytest -m gpu --continue-on-collection-errors tests
section "acceptance kernels" 90 "$python" -m benchmarks.gpu_kernels --json "$out/kernels.json"
section "TensorRT" 210 "$python" -m benchmarks.gpu_tensorrt --json "$out/tensorrt.json"
if "$python" -c 'import tensorrt_llm' 2>/dev/null; then
    section "TensorRT-LLM" 240 "$python" -m benchmarks.gpu_tensorrt_llm --json "$out/tensorrt_llm.json"
else
    echo "== TensorRT-LLM: not installed, not run"
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
echo "all sections that ran succeeded; figures are in $out"
