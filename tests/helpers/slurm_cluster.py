"""A SLURM of this machine's own, for tests: two virtual nodes, real daemons, nothing written outside its folder.

`python tests/helpers/slurm_cluster.py COMMAND...` runs a command in one (without COMMAND: a shell).  It is taken down
afterwards.

Each node is a slurmd with a host name, an /etc/hosts and a node-local folder of its own (namespaces of the kernel, so
it needs root): Open MPI under `srun --mpi=pmix` and MPICH's mpiexec tell nodes apart by host name.  All daemons stay
children of this process, which stops them by process id; they are also told to end when this process dies.
"""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare", "setpriv")
PACKAGES = "slurmctld slurmd slurm-client munge libpmix2"
NODES = ("node1", "node2")
SYSTEM_PATH = "/usr/sbin:/sbin"  # Debian's daemons are there, which is in nobody's PATH but root's.
TIMEOUT_S = 240.0  # Where the machine is busy with other things a job takes minutes.
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# cred_expire: a requeued job may start again that many seconds later (default 120, least 5)
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
# no cgroups, no binding to cores, no data base
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
# the site's default, which leaves ranks hanging when one dies: scripts must not count on another
KillOnBadExit=0
# --mpi=pmix makes a folder of the same name on each node
TmpFS={folder}/tmp.%n
# nodes claim more cores and memory than there are
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# what can never run is refused
EnforcePartLimits=ALL
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
SlurmdTimeout=10
MinJobAge=3600
# MPICH names its shared memory after job and step: no numbers of killed jobs, nor of another cluster at the same time
FirstJobId={first_job}
KillWait=60
InactiveLimit=0
ReturnToService=2
JobRequeue=1
MailProg=/bin/true
# daemons listen to this machine only
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
{nodes}
PartitionName=test Nodes={names} Default=YES MaxTime=INFINITE DefaultTime=00:05:00 State=UP
"""


def missing() -> str:
    """What this machine has not, and the way to get it; empty if a cluster can be started."""
    lacking = [name for name in PROGRAMS if _which(name) is None]
    if lacking:
        return f"there is no {', '.join(lacking)}; apt-get install --no-install-recommends {PACKAGES}"
    if os.getuid() != 0:
        return "virtual nodes with host names of their own need root; run the SLURM tests as root, e.g. in a container"
    if subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True).returncode:
        return "unshare is not permitted here; give the container CAP_SYS_ADMIN"
    return ""


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


class Cluster:
    """Two nodes of 8 claimed cores each.  Jobs of one share the file system, except `local`.

    Parameters
    ----------
    folder
        For configuration, logs and state; short, since munge's socket is in it.

    Attributes
    ----------
    environment
        In which `sbatch` and others find this cluster.
    local
        A path at which each node has a folder of its own.
    """

    def __init__(self, folder: Path):
        self.folder, self.local = folder, folder / "local"
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))
        }
        self.environment["PATH"] = f"{os.environ['PATH']}:{SYSTEM_PATH}"
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        self._daemons: dict[str, subprocess.Popen] = {}
        self._claim: socket.socket | None = None

    def up(self) -> None:
        """Start it and wait until both nodes are idle."""
        self._prepare()
        self._start_munge()
        self._start("slurmctld", ["slurmctld", "-D", "-c"])
        for node in NODES:
            self.start_node(node)
        self.wait_until(lambda: self.states() == ["idle"] * len(NODES), "nodes are idle")

    def _prepare(self) -> None:
        for name in ("state", "local", *(f"{kind}.{node}" for kind in ("spool", "tmp", "local") for node in NODES)):
            (self.folder / name).mkdir()
        self._copy_pmix()
        ports, self._claim = claim_ports(1 + len(NODES))
        nodes = [
            f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=16000 State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        ]
        first_job = random.randrange(1, 50_000_000)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname(), folder=self.folder, port=ports[0], first_job=first_job,
                nodes="\n".join(nodes), names=",".join(NODES),
            )
        )  # fmt: skip
        addresses = "".join(f"127.0.0.1 {node}\n" for node in NODES)
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + addresses)

    def _copy_pmix(self) -> None:
        """Have the link libpmix.so, which the pmix plugin opens, and which only the development package brings."""
        found = next(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2"), None)
        self._pmix = found.parent if found and not (found.parent / "libpmix.so").exists() else None
        if self._pmix:
            shutil.copytree(self._pmix, self.folder / "pmix", symlinks=True)
            (self.folder / "pmix" / "libpmix.so").symlink_to("libpmix.so.2")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        self._start("munged", ["munged", "--foreground", "--force", *options])
        self.wait_until((self.folder / "munge.socket").exists, "munge answers")

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node, also after it was killed."""
        binds = [(self.folder / "hosts", "/etc/hosts"), (self.folder / f"local.{node}", self.local)]
        if self._pmix:
            binds.append((self.folder / "pmix", self._pmix))
        mounts = "".join(f"mount --bind '{source}' '{target}' && " for source, target in binds)
        script = f"{mounts}hostname {node} && exec slurmd -D -N {node}"
        self._start(node, ["unshare", "--uts", "--mount", "sh", "-c", script])

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd and all that runs there, as a loss of power does."""
        self._daemons[node].kill()
        self._daemons.pop(node).wait()
        self._kill_steps(node)

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.out", "a") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command], env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until `condition()` is true.

        Raises
        ------
        RuntimeError
            A daemon has ended, or it takes too long; the message has the ends of all logs.
        """
        give_up = time.monotonic() + timeout_s
        while not condition():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > give_up:
                logs = (f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))
                raise RuntimeError(f"not so far that {what}, ended: {ended}\n" + "\n".join(logs))
            time.sleep(0.05)

    def states(self) -> list[str]:
        """Of all nodes, e.g. idle."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()

    def run(self, *command: str, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess:
        """Run one of SLURM's commands on this cluster."""
        environment = self.environment | extra
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)

    def submit(self, folder: Path, *arguments: str, **extra: str) -> str:
        """`sbatch` in a folder, to which the log `log` belongs; return the job's number."""
        done = self.sbatch(folder, *arguments, **extra)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def sbatch(self, folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess:
        """`sbatch`, whatever comes of it."""
        return self.run("sbatch", "--parsable", f"--chdir={folder}", "--output=log", *arguments, **extra)

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` tells: JobState, ExitCode, Restarts, ..."""
        told = self.run("scontrol", "show", "job", "--oneliner", number).stdout
        return dict(each.partition("=")[::2] for each in told.split())

    def finish(self, number: str, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
        """Wait for a job's end; return what `job` tells of it then."""
        self.wait_until(lambda: self.job(number)["JobState"] in ENDS, f"job {number} has ended", timeout_s)
        return self.job(number)

    def cancel_all(self) -> None:
        """End all jobs."""
        if self.run("squeue", "--noheader").stdout:
            self.run("scancel", "--user=root")
            self.wait_until(lambda: not self.run("squeue", "--noheader").stdout, "jobs have ended")

    def down(self) -> None:
        """End all jobs, then all daemons."""
        if "slurmctld" in self._daemons:
            with suppress(subprocess.TimeoutExpired, RuntimeError):
                self.cancel_all()
        for daemon in reversed([*self._daemons.values()]):
            daemon.terminate()
            try:
                daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        self._kill_steps()
        if self._claim:
            self._claim.close()

    def _kill_steps(self, node: str | None = None) -> None:
        """Kill what outlives its slurmd: it is of this cluster and, if a node is given, of that."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                is_of_node = node is None or self._host_of(entry) == node
                if mark in variables and is_of_node and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), 9)

    @staticmethod
    def _host_of(process: Path) -> str:
        name = subprocess.run(
            ["nsenter", f"--uts={process}/ns/uts", "hostname"], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        return name.stdout.strip()


def claim_ports(number: int) -> tuple[list[int], socket.socket]:
    """Ports in a row for daemons, and a socket: as long as it is open, who else asks for ports gets others.

    They are below those that Linux gives to connections (32768 and more): no connection takes one before its daemon is
    there, nor while a node is lost.
    """
    blocks = range(10_000, 32_000, number + 1)
    for first in random.sample(blocks, len(blocks)):
        with suppress(OSError):
            claim = socket.create_server(("127.0.0.1", first))
            ports = [*range(first + 1, first + 1 + number)]
            if all(map(_is_free, ports)):
                return ports, claim
            claim.close()
    raise RuntimeError(f"no {number} ports in a row are free between {blocks.start} and {blocks.stop}")


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that is up, and down and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        each = Cluster(Path(folder))
        Path(folder).chmod(0o755)  # munge refuses a socket that others cannot reach.
        try:
            each.up()
            yield each
        finally:
            each.down()


def main() -> int:
    if missing():
        sys.stderr.write(f"{missing()}\n")
        return 2
    with cluster() as each:
        command = sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")]
        return subprocess.run(command, env=each.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
