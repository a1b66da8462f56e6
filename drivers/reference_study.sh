#!/usr/bin/env bash
# The reference study from one end to the other on a simulated A100, with what went wrong on the way: an earlier study
# whose gate fails, a first host that is taken away in the middle of the hold-out, a second one that starts it anew.
#
#   bash drivers/reference_study.sh [OUT]
#
# OUT (default ./studytool-reference) must not be there yet. It gets host_a/ and host_b/, each as a checkout would look
# on that host, study.tar.gz and report.html. Needs python3 with venv and makes its own environment, unless PYTHON names
# the python of one in which studytool with its extra `report` is installed. docs/case-study.md tells the story.
set -euo pipefail
root=$(cd -P "$(dirname "$0")/.." && pwd)
out=${1:-studytool-reference}
if [ -e "$out" ]; then
  echo "$out: is there already; expected a new folder" >&2
  exit 2
fi
unset PYTHONPATH
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$root/.venv/bin/python
  [ -x "$PYTHON" ] || python3 -m venv "$root/.venv"
  "$PYTHON" -m pip install -q --disable-pip-version-check -c "$root/.ci/constraints.txt" "$root[report]"
fi
study=studies/sdpa_bwd_sm80_square_simulated
mixed=studies/sdpa_bwd_sm80_mixed_simulated

# Print a command as it could be typed, then run it.
run() { printf '\n$ %s\n' "$*" && eval "$*"; }
# The same for a command that must end with this exit code.
ends() {
  local code=0
  printf '\n$ %s\n' "$2" && eval "$2" || code=$?
  [ "$code" = "$1" ] || { echo "exit code $code; expected $1" >&2 && exit 1; }
  echo "(exit code $code)"
}
studytool() { "$PYTHON" -m studytool "$@"; }
python() { "$PYTHON" "$@"; }
lines() { cat "$1"/*/records/"$2"-*.jsonl 2> /dev/null | grep -c '"legs"' || true; }

host() { printf '\n== %s\n' "$2" && cd "$1" && export STUDYTOOL_SIMULATED_BOARD="$3"; }
mkdir -p "$out/host_a/studies"
out=$(cd "$out" && pwd)
for one in "$study" "$mixed"; do
  mkdir "$out/host_a/$one"
  cp "$root/$one/study.yaml" "$out/host_a/$one/"
done
cp -R "$root/drivers" "$root/gen.py" "$out/host_a/"

host "$out/host_a" "host A: the earlier study, which mixed square graphs with others" A
run "studytool freeze $mixed"
ends 1 "studytool run $mixed --dtype all"

host "$out/host_a" "host A: frozen, timed, fitted, applied" A
run "studytool freeze $study --exclude frozen_cases/sdpa_bwd_sm80_mixed_simulated/MANIFEST.json | tee posted.txt"
run "studytool time $study --dtype all"
for dtype in bf16 f16; do
  run "(cd $study/$dtype && python ../../../gen.py study.json --margin 0.05 --emit > ../../../$dtype.txt)"
  run "studytool apply $dtype.txt --table $study/table.py"
done

host "$out/host_a" "host A: the hold-out, until the rental ends" A
ends 3 "studytool time $study --dtype bf16 --split holdout --deadline 10m"
printf '\n$ %s\n' "studytool time $study --dtype bf16 --split holdout    # killed at 40 %"
"$PYTHON" -m studytool time "$study" --dtype bf16 --split holdout &
timing=$!
while kill -0 "$timing" 2> /dev/null && [ "$(lines "$study" holdout)" -lt 128 ]; do sleep 0.02; done
kill -KILL "$timing" && wait "$timing" 2> /dev/null || true
run "studytool status $study --dtype bf16"
echo
cp -R "$out/host_a" "$out/host_b"

host "$out/host_b" "host B: checked, then the whole hold-out from scratch" B
run "python drivers/holdout_only.py $study --dtype all --reason 'the rental of the first host ended'"
run "studytool score $study --dtype all"
run "studytool report $study --dtype all"
run "studytool bundle $study -o study.tar.gz"

host "$out" "a reviewer, who has the archive and the line that was posted" ""
cp host_b/study.tar.gz .
cp "host_b/$study/report.html" .
run "studytool replay study.tar.gz --expect $(grep -o 'sha256:[0-9a-f]*' host_b/posted.txt)"
