#!/usr/bin/env bash
# usage: scripts/run_gemma4_e4b_rl.sh [options of `grpo-tutorials tpu submit`]
#
# Submits the gemma4-e4b GRPO job to a v6e-32 slice. Set these seven first, with quotes around your own values:
#
#   export PROJECT_ID='my-project' CLUSTER_NAME='my-cluster' ZONE='us-east5-b' RUN_NAME='rl-test'
#   export BASE_OUTPUT_DIRECTORY='gs://my-bucket/maxtext-runs' MAXTEXT_CKPT_PATH='gs://my-bucket/gemma4-e4b/0/items'
#   export DOCKER_IMAGE='us-docker.pkg.dev/my-project/maxtext/rl:1'
#
# What is missing or wrong is named before any program is called. `grpo-tutorials tpu check` only looks, and
# `grpo-tutorials tpu render` only shows. The work is in grpo_tutorials.cluster; this is a door to it.
set -euo pipefail
unset CDPATH      # with it, cd may go elsewhere, and say so

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

# The clone's own environment where there is one, else any Python that has the package.
python=
for p in "$root/.venv/bin/python" "${VIRTUAL_ENV:-/nowhere}/bin/python" python3 python; do
    if "$p" -c 'import grpo_tutorials, typer' >/dev/null 2>&1; then
        python=$p
        break
    fi
done
[ -n "$python" ] || { echo "error: no environment with grpo_tutorials: run scripts/setup all, or pip install ." >&2; exit 2; }

exec "$python" -m grpo_tutorials tpu submit "$@"
