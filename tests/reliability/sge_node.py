"""A Grid Engine of one node, this machine, for tests: real sge_qmaster and sge_execd, with ports and files apart.

Debian: ``apt-get install gridengine-master gridengine-exec gridengine-client`` (the questions of the packages don't
matter). The daemon which starts jobs needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.reliability.slurm_node import end_daemons, free_ports
from tests.waiting import LONG, until

_HOME = Path("/var/lib/gridengine")
_BINARIES = Path("/usr/lib/gridengine")
_PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qstat", "qconf", "qdel")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_HOST = "localhost"

_BOOTSTRAP = """\
admin_user              none
default_domain          none
ignore_fqdn             false
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         {folder}/spooldb
binary_path             /usr/sbin
qmaster_spool_dir       {folder}/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
#: what is different from the configuration that comes with the package
_SETTINGS = {
    "execd_spool_dir": "{folder}/execd",
    "mailer": "/bin/true",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:02",
}
_SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
_EXEC_HOST = {
    **dict.fromkeys(["load_scaling", "complex_values", "user_lists", "xuser_lists", "projects", "xprojects"], "NONE"),
    **dict.fromkeys(["usage_scaling", "report_variables"], "NONE"),
}
_ENVIRONMENT = {
    "slots": "99",
    **dict.fromkeys(["user_lists", "xuser_lists", "start_proc_args", "stop_proc_args"], "NONE"),
    "allocation_rule": "$pe_slots",
    "control_slaves": "TRUE",
    "job_is_first_task": "TRUE",
    "urgency_slots": "min",
    "accounting_summary": "FALSE",
    "qsort_args": "NONE",
}
_QUEUE = {
    "qname": "all.q",
    "hostlist": _HOST,
    "seq_no": "0",
    "nsuspend": "1",
    "suspend_interval": "00:05:00",
    "priority": "0",
    "min_cpu_interval": "00:05:00",
    "processors": "UNDEFINED",
    "qtype": "BATCH INTERACTIVE",
    "pe_list": "smp mpi",
    "rerun": "TRUE",
    "slots": "4",
    "tmpdir": "/tmp",
    "shell": "/bin/bash",
    "shell_start_mode": "posix_compliant",
    "notify": "00:02:00",
    "initial_state": "default",
    **dict.fromkeys(
        ["load_thresholds", "suspend_thresholds", "ckpt_list", "prolog", "epilog", "starter_method"], "NONE"
    ),
    **dict.fromkeys(["suspend_method", "resume_method", "terminate_method", "owner_list", "user_lists"], "NONE"),
    **dict.fromkeys(["xuser_lists", "subordinate_list", "complex_values", "projects", "xprojects", "calendar"], "NONE"),
    **{
        "%s_%s" % (kind, what): "INFINITY"
        for what in ["rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem"]
        for kind in ("s", "h")
    },
}


def missing() -> str:
    """Return why there can be no Grid Engine here; empty if there can."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if lacking or not (_BINARIES / "spoolinit").exists():
        return "no Grid Engine here: apt-get install gridengine-master gridengine-exec gridengine-client"
    return "" if os.geteuid() == 0 else "Grid Engine starts jobs as their users, which needs root"


class SgeNode:
    """The cluster; a context manager which starts and stops it."""

    def __init__(self, folder: Path) -> None:
        """
        :param folder: for all its files
        """
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        qmaster, execd = free_ports(2)
        ports = {"SGE_QMASTER_PORT": str(qmaster), "SGE_EXECD_PORT": str(execd)}
        self.env: dict[str, str] = {
            **os.environ,
            **ports,
            "PATH": _PATH,
            "SGE_ROOT": str(folder),
            "SGE_CELL": "default",
            "SGE_ND": "true",  # daemons stay in the foreground
        }

    def __enter__(self) -> SgeNode:
        try:
            self._write_files()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()

    def _write_files(self) -> None:
        self.folder.chmod(0o755)
        for name in ("util", "bin", "lib", "utilbin"):
            (self.folder / name).symlink_to((_HOME / name).resolve())
        for name in ("default/common", "spooldb", "qmaster/job_scripts", "execd"):
            (self.folder / name).mkdir(parents=True)
        common = self.folder / "default" / "common"
        (common / "bootstrap").write_text(_BOOTSTRAP.format(folder=self.folder))
        (common / "act_qmaster").write_text(_HOST + "\n")
        names = {socket.gethostname(), socket.getfqdn(), *_names_of("127.0.0.1")} - {_HOST}
        (common / "host_aliases").write_text(" ".join([_HOST, *sorted(names)]) + "\n")
        conf = (Path("/usr/share/gridengine") / "default-configuration").read_text()
        changes = {key: value.format(folder=self.folder) for key, value in _SETTINGS.items()}
        (self.folder / "configuration").write_text(_changed(conf, changes))

    def _start(self) -> None:
        resources = _HOME / "util" / "resources"
        self._run(str(_BINARIES / "spoolinit"), "berkeleydb", "libspoolb", str(self.folder / "spooldb"), "init")
        for what, path in (
            ("configuration", self.folder / "configuration"),
            ("complexes", resources / "centry"),
            ("usersets", resources / "usersets"),
            ("managers", "root"),
        ):
            self._run(str(_BINARIES / "spooldefaults"), what, str(path))
        self._daemon("sge_qmaster")
        self._until(lambda: self._run("qconf", "-sh", check=False).returncode == 0, "no qmaster")
        self._run("qconf", "-as", _HOST)
        self._add("-Ae", {"hostname": _HOST, **_EXEC_HOST})
        for name in ("smp", "mpi"):
            self._add("-Ap", {"pe_name": name, **_ENVIRONMENT})
        self._add("-Aq", _QUEUE)
        scheduler = self.folder / "scheduler"
        scheduler.write_text(_changed(self._run("qconf", "-ssconf").stdout, _SCHEDULER))
        self._run("qconf", "-Msconf", str(scheduler))
        self._daemon("sge_execd")
        self._until(self._is_ready, "the node does not come up")

    def _is_ready(self) -> bool:
        lines = [line.split() for line in self._run("qstat", "-f").stdout.splitlines() if line.startswith("all.q@")]
        return bool(lines) and len(lines[0]) == 5  # a sixth column would have its troubles

    def _add(self, option: str, values: dict[str, str]) -> None:
        path = self.folder / "object"
        path.write_text("".join("%s %s\n" % item for item in values.items()))
        self._run("qconf", option, str(path))

    def _daemon(self, program: str) -> None:
        path = shutil.which(program, path=_PATH) or program
        with open(self.folder / (program + ".out"), "wb") as out:
            self._daemons.append(subprocess.Popen([path], env=self.env, stdout=out, stderr=subprocess.STDOUT))

    def _run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=LONG)
        if check and done.returncode:
            raise AssertionError("%s: %s%s\n%s" % (" ".join(command), done.stdout, done.stderr, self._logs()))
        return done

    def _logs(self) -> str:
        paths = [
            *self.folder.glob("*.out"),
            *self.folder.glob("qmaster/messages"),
            *self.folder.glob("execd/*/messages"),
        ]
        return "\n".join("--- %s\n%s" % (path, path.read_text(errors="replace")[-3000:]) for path in paths)

    def stop(self) -> None:
        """Delete all jobs and end the daemons."""
        try:
            if len(self._daemons) == 2:
                self._run("qdel", "-f", "-u", "*", check=False)
                for path in self.folder.glob("execd/*/active_jobs/*/job_pid"):
                    _kill_group(path.read_text())
        finally:
            end_daemons(self._daemons)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what, pause=0.2, details=self._logs)

    # -- jobs

    def state(self, job: str) -> str:
        """Return ``qw``, ``r``, ``Rr`` (restarted), ...; empty if the job is over."""
        lines = [line.split() for line in self._run("qstat", "-u", "*").stdout.splitlines()]
        return next((fields[4] for fields in lines if fields[:1] == [job]), "")

    def wait(self, job: str, log: Path) -> None:
        """Wait until the job is over."""
        self.poll(lambda: not self.state(job), log)

    def poll(self, condition: Callable[[], bool], log: Path) -> None:
        """Wait for something; fail with what the job printed."""
        until(condition, "the job has not come so far", 600.0, pause=0.2, details=lambda: _text(log) + self._logs())

    def signal(self, job: str, number: int) -> None:
        """Signal a job as Grid Engine does it: all processes of the group that its script leads."""
        path = next(self.folder.glob("execd/*/active_jobs/%s.1/job_pid" % job))
        os.killpg(int(path.read_text()), number)

    def delete(self, job: str) -> None:
        """Run ``qdel``."""
        self._run("qdel", job)


def _kill_group(pid: str) -> None:
    try:
        os.killpg(int(pid), signal.SIGKILL)
    except (ValueError, ProcessLookupError):
        pass  # it has just ended


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else "(nothing was printed)\n"


def _changed(text: str, changes: dict[str, str]) -> str:
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return "".join("%s %s\n" % (key, changes.get(key, value)) for key, value in lines)


def _names_of(address: str) -> list[str]:
    try:
        name, aliases, _ = socket.gethostbyaddr(address)
        return [name, *aliases]
    except OSError:
        return []


@pytest.fixture(scope="module")
def sge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SgeNode]:
    """Yield the cluster, for the tests of a module; skipped where it can't be."""
    if missing():
        pytest.skip(missing())
    with SgeNode(tmp_path_factory.mktemp("sge")) as node:
        yield node
