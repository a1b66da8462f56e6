#!/usr/bin/env bash
# A first look at an H200 (cc 9.0) that fits a short loan: what is here, the plan lists of three shapes, and, where both
# sides have plans, a four-leg study of a few cases within six minutes. Everything goes into OUT.
#
#   bash drivers/h200_probe.sh OUT [WHEELS]
#
# WHEELS holds wheels for machines without a network, installed beside the machine's own torch: nvidia-cudnn-frontend,
# nvidia-cutlass-dsl with libs_base, libs_core and libs_cu13, apache-tvm-ffi, nvidia-ml-py, and studytool's own
# dependencies. A wheel that is too large to travel comes in parts, NAME.whl.00, NAME.whl.01, ..., made by split;
# SHA256SUMS in the folder is checked when all parts are there.
set -euo pipefail
out=${1:?expected: bash drivers/h200_probe.sh OUT [WHEELS]}
wheels=${2:-}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" CUDNN_FRONTEND_COMPILED_CACHE="$scratch/kernels"
unset CUDNN_FRONTEND_ENABLE_FROST_ENGINES

if [ -n "$wheels" ]; then
  mkdir "$scratch/wheels"
  cp "$wheels"/*.whl "$scratch/wheels/" 2>/dev/null || true
  for part in "$wheels"/*.whl.00; do
    [ -e "$part" ] || continue
    cat "${part%.00}".[0-9][0-9] > "$scratch/wheels/$(basename "${part%.00}")"
  done
  (cd "$scratch/wheels" && sha256sum -c --quiet "$(cd "$wheels" && pwd)/SHA256SUMS")
  "$python" -m pip install -q --no-index --no-deps --target "$scratch/site" "$scratch"/wheels/*.whl
  # pip --target ignores .pth files, and without this path the DSL is missing in silence
  export PYTHONPATH="$scratch/site:$scratch/site/nvidia_cutlass_dsl/dsl_packages:$PYTHONPATH"
fi

study=$out/studies/sdpa_fwd_sm90_probe
if [ ! -e "$study" ]; then
  mkdir -p "$out/studies" "$out/frozen_cases"
  cp -r "$root/studies/sdpa_fwd_sm90_probe" "$out/studies/"
  cp -r "$root/frozen_cases/sdpa_fwd_sm90_probe" "$out/frozen_cases/"
fi

echo "== doctor"
"$python" -m studytool doctor "$study" | tee "$out/doctor.txt"

echo "== plan lists"
"$python" - <<'PYTHON' | tee "$out/plans.txt"
import sys
from studytool.engines.cudnn import graphs, plans
from studytool.model import Case

plans.pin_flag("library")
without = []
for d, size in ((384, 2048), (512, 2048), (320, 1000)):
    case = Case(op="sdpa_fwd", dtype="bf16", b=4, h_q=8, h_kv=8, s_q=size, s_kv=size, d_qk=d, d_v=d, mask="tl")
    graph = graphs.build(case).graph
    graphs.plan(graph)
    library, backend, _ = plans.sides(plans.engine_ids(graph), None)
    print(f"{case.label}: {', '.join(plans.plan_at(graph, index).name for index in library)}")
    without += [] if backend else [case.label]
if without:
    sys.exit(f"no backend plan for {without[0]}: a four-leg study would say nothing here")
PYTHON

echo "== study"
code=0
"$python" "$root/drivers/full_study.py" "$study" --dtype bf16 --deadline 6m --prewarm 8 --caller "$0" \
  > "$out/result.txt" || code=$?
cat "$out/result.txt"
"$python" -m studytool replay "$study" | tee "$out/replay.txt" || true
exit "$code"
