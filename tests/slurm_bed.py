"""A real Slurm of several nodes on this machine: each node a slurmd on a host of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosts import NETWORK, Hosts, address

CONTROL_PORT = 16817
PROGRAMS = ("slurmctld", "slurmd", "munged", "ip", "unshare", "nsenter", "runuser")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")

_CONF = """\
ClusterName=test
SlurmctldHost={machine}({net}.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdTimeout=120
KillWait=5
SlurmdParameters=config_overrides
"""


def lacking() -> str | None:
    """What this machine lacks for a bed, in words; None if nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install slurm-wlm munge iproute2)"
    probe = f"sq{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", probe)
        _run("nsenter", f"--net=/run/netns/{probe}", "unshare", "--mount", "--pid", "--fork", "--uts", "true")
    except subprocess.CalledProcessError as error:
        return f"may not make namespaces ({error.stderr.strip()})"
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return None


class Bed:
    """A running Slurm. ``nodes`` are its nodes' names."""

    def __init__(self, n_nodes: int) -> None:
        self.nodes = [f"node{i + 1}" for i in range(n_nodes)]
        # Not pytest's own folder: munged runs as another user, who must get through.
        self.folder = Path(tempfile.mkdtemp(prefix="sq-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.hosts = Hosts(n_nodes, self.folder)

    def start(self) -> None:
        """Bring all up; returns when every node is idle."""
        self._start_munge()
        self._write_conf()
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self.control("slurmctld", "-f", str(self.folder / "slurm.conf"), "-c")
        for number, node in enumerate(self.nodes, start=1):
            (self.folder / "spool" / node).mkdir()
            slurmd = ["slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", node]
            self.hosts.boot(number, slurmd, self.environment, self.folder / f"host.{node}.log")
        wait_for(
            lambda: self.control("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(self.nodes), 60
        )

    def stop(self) -> None:
        """Cancel all jobs, then end every process and namespace of the bed, also of one half up."""
        pid_files = [self.folder / "slurmctld.pid", self.folder / "munge" / "pid"]
        if pid_files[0].exists():
            self.cancel_jobs()
        for path in pid_files:
            if path.exists():
                _end(int(path.read_text()))
        self.hosts.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cancel_jobs(self) -> None:
        """End all jobs; a test that failed must not hold the nodes of the next."""
        for job in self.control("squeue", "-h", "-o", "%i").split():
            self.control("scancel", job)
        wait_for(lambda: not self.control("squeue", "-h").strip(), 180)

    def control(self, *words: str, folder: Path | None = None) -> str:
        """What a command prints where Slurm's users and its controller are."""
        done = subprocess.run(
            [*self.hosts.on_bridge(), *words],
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, project: Path, *words: str) -> Job:
        """A job of ``sbatch``, submitted in a project's folder."""
        return Job(self, int(self.control("sbatch", "--parsable", *words, folder=project)), project)

    def set_link(self, node: str, state: str) -> None:
        """Plug a node's network in or out: up or down."""
        self.hosts.set_link(self._number(node), state)

    @contextmanager
    def silenced(self, node: str) -> Iterator[None]:
        """A node whose slurmd accepts connections and says nothing."""
        pids = self.hosts.pids(self._number(node))
        [slurmd] = [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_text().startswith("slurmd\0")]
        os.kill(slurmd, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(slurmd, signal.SIGCONT)

    def processes(self) -> dict[int, str]:
        """Command lines on all nodes, without those that make up a node, by process id."""
        found = {}
        for node in self.nodes:
            for pid in self.hosts.pids(self._number(node)):
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue  # it has ended
                if line and not line.startswith(("unshare ", "bash -c", "slurmd ", "slurmstepd")):
                    found[pid] = line
        return found

    def _number(self, node: str) -> int:
        return self.nodes.index(node) + 1

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o711)
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        for path in (folder, folder / "key"):
            shutil.chown(path, "munge", "munge")
        options = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        files = [f"--{name}={folder / file}" for name, file in options.items()]
        _run("runuser", "-u", "munge", "--", "munged", *files, "--num-threads=2", "--force")

    def _write_conf(self) -> None:
        machine = os.uname().nodename.split(".")[0]
        text = _CONF.format(machine=machine, net=NETWORK, port=CONTROL_PORT, folder=self.folder)
        for i, node in enumerate(self.nodes):
            text += (
                f"NodeName={node} NodeHostname={machine} "
                f"NodeAddr={address(i + 1)} Port={CONTROL_PORT + 1 + i} "
                "CPUs=2 RealMemory=8000 State=UNKNOWN\n"
            )
        text += f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        (self.folder / "slurm.conf").write_text(text)


class Job:
    """One job of a bed."""

    def __init__(self, bed: Bed, number: int, project: Path) -> None:
        self.number = number
        self._bed = bed
        self._output = project / f"slurm-{number}.out"

    @property
    def log(self) -> str:
        """What the job has printed."""
        return self._output.read_text() if self._output.exists() else ""

    def field(self, name: str) -> str:
        """A field of `scontrol show job`."""
        found = re.search(rf"\b{name}=(\S*)", self._bed.control("scontrol", "show", "job", str(self.number)))
        assert found is not None
        return found.group(1)

    def signal(self, name: str) -> None:
        """A signal to the batch step, as Slurm itself sends it before the time limit."""
        self._bed.control("scancel", f"--signal={name}", "--batch", str(self.number))

    def wait_for_log(self, pattern: str, timeout_s: float) -> None:
        """Until the job has printed it; fails if the job ends first."""

        def has_come() -> bool:
            if re.search(pattern, self.log):
                return True
            assert self.field("JobState") not in ENDED, self.log
            return False

        wait_for(has_come, timeout_s, lambda: self.log)

    def start_again(self) -> None:
        """Once the job is back in the queue, let it begin now instead of in two minutes."""
        wait_for(lambda: self.field("Reason") == "BeginTime", 60, lambda: self.log)
        # Slurm refuses a start in the second in which it took the first one's credentials back.
        time.sleep(3)
        self._bed.control("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    def end(self, timeout_s: float) -> tuple[str, str]:
        """State and exit code, as in ("COMPLETED", "0:0"), once it has ended."""
        wait_for(lambda: self.field("JobState") in ENDED, timeout_s, lambda: self.log)
        return self.field("JobState"), self.field("ExitCode")


def wait_for(is_so: object, timeout_s: float, describe: object = lambda: "") -> None:
    """Until a condition holds."""
    assert callable(is_so)
    assert callable(describe)
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so after {timeout_s:g} s: {describe()}"
        time.sleep(0.2)


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=180, check=True).stdout


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
