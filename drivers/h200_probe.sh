#!/usr/bin/env bash
# A first look at an H200 (cc 9.0) that fits a short loan: what is here, the plan lists of three shapes, and, where both
# sides have plans, a four-leg study of a few cases within six minutes. What comes of it is in OUT: a few texts, and
# probe.tgz with the study's folder, also after an error or a deadline.
#
#   bash drivers/h200_probe.sh OUT [WHEELS]
#
# WHEELS holds wheels for machines without a network, installed beside the machine's own torch, numpy, scipy and pandas:
# nvidia-cudnn-frontend, nvidia-cutlass-dsl with libs_base, libs_core and libs_cu13, apache-tvm-ffi, msgspec, and
# whatever else of studytool's dependencies is missing. A wheel that is too large to travel comes in parts made by
# split, NAME.whl.00, NAME.whl.01, ...; SHA256SUMS lists the whole wheels. All parts must be in the folder when this
# starts: where they travel in several calls, copy each call's into one folder first.
# SCRATCH (default /tmp/studytool-probe) keeps what was installed and compiled, so that a second start is quick.
set -euo pipefail
out=${1:?expected: bash drivers/h200_probe.sh OUT [WHEELS]}
wheels=${2:-}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=${SCRATCH:-/tmp/studytool-probe}
work=$scratch/work
mkdir -p "$out" "$work"
out=$(cd "$out" && pwd)
trap 'tar -C "$work" -czf "$out/probe.tgz" .' EXIT
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" CUDNN_FRONTEND_COMPILED_CACHE="$scratch/kernels"
unset CUDNN_FRONTEND_ENABLE_FROST_ENGINES

if [ -n "$wheels" ]; then
  if [ ! -e "$scratch/site.whole" ]; then
    rm -rf "$scratch/wheels" "$scratch/site"
    mkdir "$scratch/wheels"
    cp "$wheels"/*.whl "$scratch/wheels/" 2>/dev/null || true
    for part in "$wheels"/*.whl.00; do
      [ -e "$part" ] || continue
      cat "${part%.00}".[0-9][0-9] > "$scratch/wheels/$(basename "${part%.00}")"
    done
    (cd "$scratch/wheels" && sha256sum -c --quiet "$(cd "$wheels" && pwd)/SHA256SUMS")
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$scratch/site" \
      "$scratch"/wheels/*.whl
    touch "$scratch/site.whole"
  fi
  # pip --target ignores .pth files, and without this path the DSL is missing in silence
  export PYTHONPATH="$scratch/site:$scratch/site/nvidia_cutlass_dsl/dsl_packages:$PYTHONPATH"
fi

study=$work/studies/sdpa_fwd_sm90_probe
if [ ! -e "$study" ]; then
  mkdir -p "$work/studies" "$work/frozen_cases"
  cp -r "$root/studies/sdpa_fwd_sm90_probe" "$work/studies/"
  cp -r "$root/frozen_cases/sdpa_fwd_sm90_probe" "$work/frozen_cases/"
fi

echo "== doctor ($SECONDS s)"
"$python" -m studytool doctor "$study" 2>&1 | tee "$out/doctor.txt"

echo "== plan lists ($SECONDS s)"
"$python" - 2>&1 <<'PYTHON' | tee "$out/plans.txt"
import sys

import torch  # before cuDNN, whose frontend looks for the CUDA runtime that torch brings

torch.cuda.init()
from studytool.engines.cudnn import graphs, plans
from studytool.model import Case

plans.pin_flag("library")
found = 0
for d, size in ((384, 2048), (512, 2048), (320, 1000)):
    case = Case(op="sdpa_fwd", dtype="bf16", b=4, h_q=8, h_kv=8, s_q=size, s_kv=size, d_qk=d, d_v=d, mask="tl")
    graph = graphs.build(case).graph
    graphs.plan(graph)
    library, backend, _ = plans.sides(plans.engine_ids(graph), None)
    found += len(backend)
    print(f"{case.label}: {', '.join(plans.plan_at(graph, index).name for index in library)}")
if not found:
    sys.exit("no backend plan for any of these: a four-leg study would say nothing here")
PYTHON

echo "== study ($SECONDS s)"
code=0
timeout 420 "$python" "$root/drivers/full_study.py" "$study" --dtype bf16 --deadline 4m --prewarm 8 --caller "$0" \
  > "$out/result.txt" 2>&1 || code=$?
cat "$out/result.txt"

echo "== replay ($SECONDS s)"
"$python" -m studytool replay "$study" 2>&1 | tee "$out/replay.txt" || true
exit "$code"
