#!/usr/bin/env bash
# Runs one shard on each core of an instance of an array job. Not run on a device yet: tests run it on
# a CPU, where nothing looks at NEURON_RT_VISIBLE_CORES.
#
#     bash cores.sh "0 2 4 6" PROMPTS RESULTS --count N -- noria generate CONFIG ...
#
# N is the number of instances times that of cores. A process takes one logical core, and with
# NEURON_LOGICAL_NC_CONFIG=1, which Noria sets, a Trainium2 chip has eight. Two of them share 24 GB.
# assumed: those of an even number and the next, so that a large model runs on every other core.
set -euo pipefail

read -ra cores <<< "$1"
shift
instance=${JOB_COMPLETION_INDEX:-${AWS_BATCH_JOB_ARRAY_INDEX:?this is no array job}}
here=$(dirname "$0")

pids=()
for place in "${!cores[@]}"; do
    NEURON_RT_VISIBLE_CORES=${cores[place]} python "$here/shards.py" run \
        --index $((instance * ${#cores[@]} + place)) "$@" &
    pids+=($!)
done

status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
done
exit "$status"
