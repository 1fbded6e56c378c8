"""The parts of a job script that are the same in every job: signals, waiting, and resuming in a new allocation.

Signals. Both schedulers warn the script first: Slurm by SIGUSR1 (``--signal=B:USR1@<lead>``), SGE by SIGUSR1 at the
soft limit and SIGUSR2 before SIGKILL (``-notify``). The script forwards SIGUSR1; the training saves and exits. Job
control (``set -m``) gives the training its own process group, as SGE signals the whole group of the script.
Slurm sends SIGTERM to every process of the job at once when the job is taken away (``scontrol requeue``, a
preempting partition, ``scancel``): it is not forwarded, since a second one would end the training before it has saved,
and Slurm itself knows whether the job comes back.
"""

from __future__ import annotations

#: scheduler -> how a job identifies itself: $id, $index in the array, $restarts
IDENTITY = {
    "slurm": """\
id=$SLURM_JOB_ID
index=${SLURM_ARRAY_TASK_ID:-0}
restarts=${SLURM_RESTART_COUNT:-0}
""",
    "sge": """\
id=$JOB_ID
index=0
if [ "${SGE_TASK_ID:-undefined}" != undefined ]; then id=$JOB_ID.$SGE_TASK_ID; index=$((SGE_TASK_ID - 1)); fi
restarts=${RESTARTED:-0}
""",
}

#: give up a job that keeps starting at the same point of the training
COUNT_STARTS = """\
say "start on $(hostname), restarts so far: $restarts"
if [ "$max_starts" -gt 0 ] && [ -n "$model" ]; then
  point=$("${program[@]}" status --point "$model") || { say "giving up: returnn-tf status does not work"; exit 1; }
  mkdir -p "$log_dir"
  printf '%s\\n' "$point" >> "$log_dir/$name.$id.starts"
  starts=$(grep -cxF -e "$point" "$log_dir/$name.$id.starts")
  if [ "$starts" -gt "$max_starts" ]; then
    say "giving up: $max_starts starts ended without progress, all at: $point"
    exit 1
  fi
  say "resumes at: $point"
fi
"""

#: functions for the traps, which are set before anything that takes time
COMMON = """\
child='' interrupted='' warned='' taken=''
say() { echo "$(date '+%Y-%m-%d %H:%M:%S') job $id: $*"; }
warn() { say "$1: asking the training to save and stop"; interrupted=1; warned=1; [ -z "$child" ] || stop_training; }
"""
#: scheduler -> its signals
TRAPS = {
    "slurm": """\
trap 'warn SIGUSR1' USR1
trap 'say "SIGTERM from Slurm, which also reaches the training"; interrupted=1; taken=1; end_launcher' TERM
""",
    "sge": """\
trap 'warn SIGUSR1' USR1
trap 'warn SIGUSR2' USR2
""",
}

#: how SIGUSR1 reaches the training; it would kill horovodrun, so it goes to rank 0, which informs the others
STOP_BY_CHILD = """\
stop_training() { kill -s USR1 "$child"; }
end_launcher() { :; }
"""
#: after SIGTERM mpirun sleeps for its whole timeout, even if its processes have long ended
STOP_BY_MPIRUN = """\
stop_training() { kill -s USR1 "$child"; }
end_launcher() {
  while ps -o stat= --ppid "$child" | grep -q '^[^Z]'; do sleep 1; done
  kill -s KILL "$child"
}
"""
STOP_BY_RANK_0 = """\
rank_0=$(mktemp)
trap 'rm -f "$rank_0"' EXIT
stop_training() { kill -s USR1 "$(cat "$rank_0")"; }
end_launcher() { :; }
"""
#: command run by horovodrun: rank 0 writes its process id, then becomes the training
NOTE_RANK_0 = '[ "${HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK}" != 0 ] || echo $$ > "$0"; exec "$@"'

#: a parallel environment of SGE may spread the slots over machines
ONE_MACHINE = """\
if [ "${NHOSTS:-1}" -gt 1 ]; then
  say "giving up: launch starts the processes of one machine, but the slots are on $NHOSTS: take another --pe or mpirun"
  exit 1
fi
"""

#: a second wait gives 127 if the training ended while a trap ran: then the first one returned the code
RUN = """\
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
"""

#: 138: SIGUSR1, 143: SIGTERM; horovodrun exits with 1 whatever its processes returned
GO_ON = """\
go_on=''
case $code in
  0) ;;
  138 | 143 | "$requeue_code") go_on=1 ;;
  *) [ -z "$warned" ] || [ "$launcher" != horovodrun ] || go_on=1 ;;
esac
if [ -n "$go_on" ] && [ -z "$taken" ]; then
  say "requeueing"
%s
fi
"""

#: scheduler -> how a job is requeued
REQUEUE = {
    "slurm": """\
  trap '' TERM
  scontrol requeue "$SLURM_JOB_ID" && exit 0""",
    "sge": """\
  exit 99""",
}
