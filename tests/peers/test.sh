#!/usr/bin/env bash
# Runs peers_test.py in the environment of setup.sh; ends with 77, which CTest shows as skipped, where that is missing.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
python=$("$here/setup.sh" --prefix)/bin/python
[ -x "$python" ] || { echo "needs PyTorch: run tests/peers/setup.sh"; exit 77; }
exec "$python" -B "$here/peers_test.py"
