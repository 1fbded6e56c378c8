#!/bin/bash
#$ -S /bin/bash
#$ -N a
#$ -cwd
#$ -j y
#$ -o log/a.$JOB_ID.log
#$ -l h_rt=24:00:00
#$ -l s_rt=23:57:00
#$ -l mem_free=8192M
#$ -r y
#$ -notify
#$ -pe smp 4
#$ -l gpu=1

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
launcher=launch
program=(returnn-tf)
arguments=(++num_epochs 5)
configs=(a.config)
models=(a/net)
requeue_codes=(0)
config=${configs[$index]} model=${models[$index]} requeue_code=${requeue_codes[$index]}

cd /work || exit 1
export OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1

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

training=("${program[@]}" launch --processes 4 "$config" "${arguments[@]}")
if [ "${NHOSTS:-1}" -gt 1 ]; then
  say "giving up: launch starts the processes of one machine, but the slots are on $NHOSTS: take another --pe or mpirun"
  exit 1
fi
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
  exit 99
fi

exit "$code"
