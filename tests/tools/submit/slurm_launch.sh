#!/bin/bash
#SBATCH --job-name=a
#SBATCH --output=log/a.%j.log
#SBATCH --open-mode=append
#SBATCH --time=60:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=3
#SBATCH --mem=65536M
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --gres=gpu:4
#SBATCH --partition=long
#SBATCH --account=asr

# Written by returnn-tf submit. Do not run it by hand.
set -m

id=$SLURM_JOB_ID
index=${SLURM_ARRAY_TASK_ID:-0}
restarts=${SLURM_RESTART_COUNT:-0}
child='' interrupted='' warned='' taken=''
say() { echo "$(date '+%Y-%m-%d %H:%M:%S') job $id: $*"; }
warn() { say "$1: asking the training to save and stop"; interrupted=1; warned=1; [ -z "$child" ] || stop_training; }
trap 'warn SIGUSR1' USR1
trap 'say "SIGTERM from Slurm, which also reaches the training"; interrupted=1; taken=1; end_launcher' TERM

name=a
log_dir=log
max_starts=3
launcher=launch
program=(returnn-tf)
arguments=()
configs=(a.config)
models=(a/net)
requeue_codes=(0)
config=${configs[$index]} model=${models[$index]} requeue_code=${requeue_codes[$index]}

cd '/data/my runs' || exit 1
type module > /dev/null 2>&1 || . /etc/profile
module load cuda/12.3 || exit 1
. /home/me/env/bin/activate || exit 1
export OMP_NUM_THREADS=3 TF_NUM_INTRAOP_THREADS=3
export HOROVOD_TIMELINE='out/time line.json'
ulimit -c 0

say "start on $(hostname), restarts so far: $restarts"
if [ "$max_starts" -gt 0 ] && [ -n "$model" ]; then
  point=$("${program[@]}" status --point "$model") || { say "giving up: returnn-tf status does not work"; exit 1; }
  mkdir -p "$log_dir"
  printf '%s\n' "$point" >> "$log_dir/$name.$id.starts"
  starts=$(grep -cxF -e "$point" "$log_dir/$name.$id.starts")
  if [ "$starts" -gt "$max_starts" ]; then
    say "giving up: $max_starts starts ended without progress, all at: $point"
    exit 1
  fi
  say "resumes at: $point"
fi

training=("${program[@]}" launch --processes 4 --min-processes 2 "$config" "${arguments[@]}")
stop_training() { kill -s USR1 "$child"; }
end_launcher() { :; }
command=("${training[@]}")

"${command[@]}" < /dev/null &
child=$!
[ -z "$warned" ] || stop_training
wait "$child"
code=$?
while [ -n "$interrupted" ]; do
  interrupted=''
  wait "$child"
  again=$?
  [ "$again" = 127 ] || code=$again
done
say "the training ended with exit code $code"

go_on=''
case $code in
  0) ;;
  138 | 143 | "$requeue_code") go_on=1 ;;
  *) [ -z "$warned" ] || [ "$launcher" != horovodrun ] || go_on=1 ;;
esac
if [ -n "$go_on" ] && [ -z "$taken" ]; then
  say "requeueing"
  trap '' TERM
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi

exit "$code"
