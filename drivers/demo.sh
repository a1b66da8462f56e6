#!/usr/bin/env bash
# A real study on this machine's CPU, from the declaration to a looked-up table. Needs python3 with venv, nothing else.
# Arguments go to `studytool demo`: --quick for the small study, --out DIR for another folder than ./studytool-demo.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -c "$root/.ci/constraints.txt" "$root[torch]"
unset PYTHONPATH
exec "$venv/bin/studytool" demo "$@"
