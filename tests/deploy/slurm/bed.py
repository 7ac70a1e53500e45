"""A real Slurm of several nodes on this machine: each node a slurmd in network, process, host-name and mount
namespaces of its own, with an address of its own. All of it ends by process id."""

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

NET = "10.77.0"
CONTROL_PORT = 16817
PROGRAMS = ("slurmctld", "slurmd", "munged", "ip", "unshare", "nsenter", "runuser")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")

# bash stays as the node's first process: it collects orphans, which slurmd does not.
_NODE = """
hostname "$1"; mount --bind "$2/hosts" /etc/hosts; mount --bind "$2/resolv.conf" /etc/resolv.conf
mount -t tmpfs none /dev/shm
slurmd -D -f "$3" -N "$1" & while kill -0 $! 2> /dev/null; do wait; done
"""
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
        self.prefix = f"sq{os.getpid()}"
        # Not pytest's own folder: munged runs as another user, who must get through.
        self.folder = Path(tempfile.mkdtemp(prefix="sq-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Bring all up; returns when every node is idle."""
        self._make_network()
        self._start_munge()
        self._write_conf()
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self.control("slurmctld", "-f", str(self.folder / "slurm.conf"), "-c")
        for node in self.nodes:
            (self.folder / "spool" / node).mkdir()
            self._start_host(node)
        wait_for(
            lambda: self.control("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(self.nodes), 60
        )

    def stop(self) -> None:
        """Cancel all jobs, then end every process and namespace of the bed, also of one half up."""
        pid_files = [self.folder / "slurmctld.pid", self.folder / "munge" / "pid"]
        if pid_files[0].exists():
            self.cancel_jobs()
        for host in self._hosts.values():
            host.kill()
            host.wait()
        for path in pid_files:
            if path.exists():
                _end(int(path.read_text()))
        for name in (*self._namespaces(), self._namespace("ctl")):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def cancel_jobs(self) -> None:
        """End all jobs; a test that failed must not hold the nodes of the next."""
        for job in self.control("squeue", "-h", "-o", "%i").split():
            self.control("scancel", job)
        wait_for(lambda: not self.control("squeue", "-h").strip(), 60)

    def control(self, *words: str, folder: Path | None = None) -> str:
        """What a command prints where Slurm's users and its controller are."""
        done = subprocess.run(
            ["ip", "netns", "exec", self._namespace("ctl"), *words],
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, project: Path, *words: str) -> Job:
        """A job of ``sbatch``, submitted in a project's folder."""
        return Job(self, int(self.control("sbatch", "--parsable", *words, folder=project)), project)

    def set_link(self, node: str, state: str) -> None:
        """Plug a node's network in or out: up or down."""
        _run("ip", "-n", self._namespace("ctl"), "link", "set", f"v{self.nodes.index(node) + 1}", state)

    @contextmanager
    def silenced(self, node: str) -> Iterator[None]:
        """A node whose slurmd accepts connections and says nothing."""
        pids = [int(word) for word in _run("ip", "netns", "pids", self._namespace(node)).split()]
        [slurmd] = [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_text().startswith("slurmd\0")]
        os.kill(slurmd, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(slurmd, signal.SIGCONT)

    def processes(self) -> dict[int, str]:
        """Command lines on all nodes, without those that make up a node, by process id."""
        found = {}
        for name in self._namespaces():
            for word in _run("ip", "netns", "pids", name).split():
                try:
                    line = Path(f"/proc/{word}/cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue  # it has ended
                if line and not line.startswith(("unshare ", "bash -c", "slurmd ", "slurmstepd")):
                    found[int(word)] = line
        return found

    def _namespace(self, place: str) -> str:
        return f"{self.prefix}-{place}"

    def _namespaces(self) -> list[str]:
        return [self._namespace(node) for node in self.nodes]

    def _make_network(self) -> None:
        control = self._namespace("ctl")
        lines = ["127.0.0.1 localhost", *(f"{NET}.{11 + i} {node}" for i, node in enumerate(self.nodes))]
        for name in (control, *self._namespaces()):
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            # Without a resolver look-ups fail at once; with one that cannot be reached they take long.
            (folder / "resolv.conf").write_text("")
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", control, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", control, "addr", "add", f"{NET}.1/24", "dev", "br0")
        _run("ip", "-n", control, "link", "set", "br0", "up")
        for i, name in enumerate(self._namespaces()):
            end = f"v{i + 1}"
            _run(*f"ip -n {control} link add {end} type veth peer name eth0 netns {name}".split())
            _run(*f"ip -n {control} link set {end} master br0 up".split())
            _run(*f"ip -n {name} addr add {NET}.{11 + i}/24 dev eth0".split())
            _run(*f"ip -n {name} link set eth0 up".split())
            _run(*f"ip -n {name} route add default via {NET}.1".split())

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
        text = _CONF.format(machine=machine, net=NET, port=CONTROL_PORT, folder=self.folder)
        for i, node in enumerate(self.nodes):
            text += (
                f"NodeName={node} NodeHostname={machine} NodeAddr={NET}.{11 + i} Port={CONTROL_PORT + 1 + i} "
                "CPUs=2 RealMemory=8000 State=UNKNOWN\n"
            )
        text += f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        (self.folder / "slurm.conf").write_text(text)

    def _start_host(self, node: str) -> None:
        name = self._namespace(node)
        # Not `ip netns exec`: it hides /sys/fs/cgroup, without which slurmd does not start.
        place = [
            "nsenter",
            f"--net=/run/netns/{name}",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
        ]
        with open(self.folder / f"host.{node}.log", "wb") as log:
            self._hosts[node] = subprocess.Popen(
                [
                    *(*place, "--mount-proc", "--uts", "--", "bash", "-c", _NODE, "bash"),
                    *(node, f"/etc/netns/{name}", str(self.folder / "slurm.conf")),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


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
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
