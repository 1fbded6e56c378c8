#!/bin/bash
#$ -S /bin/bash
#$ -N a
#$ -cwd
#$ -j y
#$ -o log/a.$JOB_ID.log
#$ -l h_rt=60:00:00
#$ -l s_rt=59:55:00
#$ -l mem_free=16384M
#$ -r y
#$ -notify
#$ -pe mpi 4
#$ -l gpu=1
#$ -q long
#$ -P asr

# Written by returnn-tf submit. Do not run it by hand.
set -m

id=$JOB_ID
index=0
if [ "${SGE_TASK_ID:-undefined}" != undefined ]; then id=$JOB_ID.$SGE_TASK_ID; index=$((SGE_TASK_ID - 1)); fi
restarts=${RESTARTED:-0}
child='' interrupted='' warned='' taken=''
say() { echo "$(date '+%Y-%m-%d %H:%M:%S') job $id: $*"; }
warn() { say "$1: asking the training to save and stop"; interrupted=1; warned=1; [ -z "$child" ] || stop_training; }
trap 'warn SIGUSR1' USR1
trap 'warn SIGUSR2' USR2

name=a
log_dir=log
max_starts=3
launcher=mpirun
program=(returnn-tf)
arguments=(++use_horovod True)
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

training=("${program[@]}" "$config" "${arguments[@]}")
stop_training() { kill -s USR1 "$child"; }
end_launcher() {
  while ps -o stat= --ppid "$child" | grep -q '^[^Z]'; do sleep 1; done
  kill -s KILL "$child"
}
export RETURNN_TF_HOSTS=$(awk '{print $1 ":" $2}' "$PE_HOSTFILE" | paste -sd,)
command=(mpirun -np 4 -bind-to none -map-by slot -mca odls_base_sigkill_timeout 60)
for variable in PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV OMP_NUM_THREADS TF_NUM_INTRAOP_THREADS RETURNN_TF_HOSTS HOROVOD_TIMELINE; do
  [ -z "${!variable+x}" ] || command+=(-x "$variable")
done
command+=("${training[@]}")

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
  exit 99
fi

exit "$code"
