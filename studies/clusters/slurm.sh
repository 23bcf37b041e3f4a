#!/bin/bash
# One study over the nodes of a Slurm job: sbatch studies/clusters/slurm.sh [more options of `hylorada run`]
# Submit it from a clone of this repository with .venv in it, on a file system that all nodes see; the study lands in
# its mlruns. When the job is pre-empted or its time is up, submit it again: it resumes.
#SBATCH --job-name=hylorada
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --output=hylorada-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
# shellcheck source=/dev/null
source .venv/bin/activate

# one token for this job's nodes, which only this user can read
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/.ray-token-$SLURM_JOB_ID"
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
ip=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000)) # another job's head may be on the same node
options=(--block --temp-dir="/tmp/ray-$SLURM_JOB_ID" --disable-usage-stats --num-cpus="$SLURM_CPUS_PER_TASK")

trap 'kill $(jobs -p) 2> /dev/null; wait; rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$ip" --port="$port" --include-dashboard=false "${options[@]}" &
until (: < "/dev/tcp/$ip/$port") 2> /dev/null; do sleep 1; done
if ((${#nodes[@]} > 1)); then
    srun --overlap --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --exclude="$head" \
        ray start --address="$ip:$port" "${options[@]}" &
fi

hylorada run learnable_bucketing --address "$ip:$port" --wait 120 --storage "$PWD/mlruns" --name wide "$@" &
study=$!
trap 'kill -TERM $study' INT TERM # the job is to end: the state is saved
wait $study || wait $study
