"""A Slurm cluster of one node, this machine, for tests: real munged, slurmctld and slurmd, with ports and files apart.

Debian and Ubuntu: ``apt-get install slurmctld slurmd slurm-client munge``. Nothing outside of the given folder is read
or written, so it runs beside a Slurm which the machine has anyway.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from tests.waiting import LONG, until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
# states of Slurm after which a job does nothing any more
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
#: seconds after a requeue for which the node refuses the job, as it holds the credential of its last run for revoked
_REST = 3.0

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait={kill_wait}
MessageTimeout=100
BatchStartTimeout=300
MinJobAge=600
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4 State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm which this machine lacks."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]


class SlurmNode:
    """The cluster; a context manager which starts and stops it."""

    def __init__(self, folder: Path, *, cpus: int = 2, memory: int = 4000, kill_wait: int = 60) -> None:
        """
        :param folder: for all its files; short, as the path of a socket may have 107 characters only
        :param cpus: which the node says it has; jobs may share them
        :param memory: MB
        :param kill_wait: seconds between SIGTERM and SIGKILL for jobs which are taken down
        """
        self.folder = folder
        self.kill_wait = kill_wait
        self._waiting: dict[tuple[str, str], float] = {}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._facts = {"cpus": cpus, "memory": memory, "kill_wait": kill_wait}
        self.env: dict[str, str] = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> SlurmNode:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()

    def _start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir(mode=0o755)
        ctld_port, slurmd_port = free_ports(2)
        user = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
        conf = _CONF.format(
            folder=self.folder,
            host=socket.gethostname().split(".")[0],
            user=user,
            ctld_port=ctld_port,
            slurmd_port=slurmd_port,
            **self._facts,
        )
        (self.folder / "slurm.conf").write_text(conf.lstrip())
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = ["--%s=%s/munge.%s" % (option, self.folder, name) for option, name in files.items()]
        self._daemon(["munged", "--foreground", "--force", *options])
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged does not start")
        self._daemon(["slurmctld", "-D", "-c"])
        self._daemon(["slurmd", "-D", "-c"])
        self._until(lambda: self._output("sinfo", "-h", "-o", "%T", check=False) == "idle", "no idle node")

    def _daemon(self, command: list[str]) -> None:
        with open(self.folder / ("%s.out" % command[0]), "wb") as out:
            program = shutil.which(command[0], path=_PATH) or command[0]
            guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []  # if the tests are killed
            self._daemons.append(
                subprocess.Popen([*guard, program, *command[1:]], env=self.env, stdout=out, stderr=subprocess.STDOUT)
            )

    def stop(self) -> None:
        """Cancel all jobs and end the daemons."""
        try:
            if len(self._daemons) == 3:
                self._output("scancel", "--full", "--signal=KILL", "--state=RUNNING", "--partition=main", check=False)
                self._output("scancel", "--partition=main", check=False)
                self._until(lambda: not self._output("squeue", "-h", "-t", "R,CG", check=False), "jobs stay")
        finally:
            end_daemons(self._daemons)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what, pause=0.2, details=self._logs)

    def _output(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=LONG)
        if check and done.returncode:
            raise AssertionError("%s: %s%s" % (" ".join(command), done.stdout, done.stderr))
        return done.stdout.strip()

    def _logs(self) -> str:
        texts = []
        for path in sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log")]):
            texts.append("--- %s\n%s" % (path.name, path.read_text(errors="replace")[-3000:]))
        return "\n".join(texts)

    # -- jobs

    def sbatch(self, *arguments: str, cwd: Optional[Path] = None) -> str:
        """Submit; return the id of the job."""
        command = ["sbatch", "--parsable", *arguments]
        done = subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split(";")[0]

    def facts(self, job: str) -> dict[str, str]:
        """Return what ``scontrol show job`` says: JobState, Restarts, ExitCode, Requeue, TimeLimit, ..."""
        lines = self._output("scontrol", "show", "job", job).splitlines()
        paths = [line for line in lines if line.strip().startswith(("StdOut=", "Command=", "WorkDir="))]  # with spaces
        fields = [field for line in lines if line not in paths for field in line.split() if "=" in field]
        return dict(field.split("=", 1) for field in [*fields, *(line.strip() for line in paths)])

    def state(self, job: str) -> str:
        """The state of a job, e.g. RUNNING; one which waits out the two minutes after a requeue is let go early."""
        facts = self.facts(job)
        if facts["JobState"] == "PENDING" and facts["Reason"] == "BeginTime":
            since = self._waiting.setdefault((job, facts["Restarts"]), time.monotonic())
            if time.monotonic() > since + _REST:
                self._output("scontrol", "update", "JobId=" + job, "StartTime=now")
        return facts["JobState"]

    def until(self, job: str, states: tuple[str, ...], timeout: float = LONG, *, restarts: int = 0) -> str:
        """Wait until the job is in one of the states, with at least n restarts; return the state."""

        def there() -> bool:
            state = self.state(job)
            if state in FINAL and state not in states:
                raise AssertionError("job %s ended as %s\n%s" % (job, state, self.log_of(job)))
            return state in states and int(self.facts(job)["Restarts"]) >= restarts

        what = "job %s is not %s" % (job, " or ".join(states))
        until(there, what, timeout, pause=0.2, details=lambda: self.log_of(job))
        return self.state(job)

    def wait(self, job: str, timeout: float = LONG) -> str:
        """Wait until the job is over for good; return its state."""
        return self.until(job, FINAL, timeout)

    def requeue(self, job: str) -> None:
        """Requeue as an administrator or a preempting partition does it; return when the job runs again."""
        restarts = int(self.facts(job)["Restarts"])
        self._output("scontrol", "requeue", job)
        self.until(job, ("RUNNING", "COMPLETING", *FINAL), restarts=restarts + 1)

    def warn(self, job: str) -> None:
        """Send SIGUSR1 to the script of a job, as ``--signal=B:USR1@...`` does."""
        self._output("scancel", "--batch", "--signal=USR1", job)

    def poll(self, condition: Callable[[], bool], job: str, timeout: float = LONG) -> None:
        """Wait for something that a job does; fail with the log of the job, at once if that has ended."""

        def there() -> bool:
            over = self.state(job) in FINAL
            if condition():
                return True
            assert not over, "job %s has ended\n%s" % (job, self.log_of(job))
            return False

        until(there, "job %s has not come so far" % job, timeout, pause=0.2, details=lambda: self.log_of(job))

    def cancel(self, job: str) -> None:
        """Run ``scancel``."""
        self._output("scancel", job)

    def log_of(self, job: str) -> str:
        """Return what the job printed so far."""
        path = Path(self.facts(job)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else "(job %s has printed nothing)" % job


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens, at random from those which no system gives to connections unasked."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("", port))
            found.add(port)
    return sorted(found)


def end_daemons(daemons: list[subprocess.Popen[bytes]]) -> None:
    """End the daemons of a cluster, the last one first; the list is empty then."""
    while daemons:
        daemon = daemons.pop()
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    """Yield the cluster, for the tests of a module; skipped where Slurm is not installed."""
    missing = missing_programs()
    if missing:
        pytest.skip("no Slurm here, missing %s: apt-get install slurmctld slurmd slurm-client munge" % missing)
    with SlurmNode(tmp_path_factory.mktemp("slurm")) as node:
        yield node
