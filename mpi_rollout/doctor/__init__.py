"""`doctor`: check what this machine's MPI, cores, HDF5 and file system will do to a run.

All ranks run it.  Each rank forks a process, and these processes examine MPI together.  The root forks another one for
its host, and prints all findings as they come.  The doctor ends, and says what it knows, also when MPI_Init ends its
process or never returns.  It imports all folders that a run needs but `collect`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from time import sleep

from mpi_rollout.doctor.host import examine_host
from mpi_rollout.doctor.probe import BAD, OK, WARN, Finding, Probe, exit_code
from mpi_rollout.doctor.world import examine_world
from mpi_rollout.errors import LaunchError
from mpi_rollout.exchange.world import GRACE_S, claimed_rank
from mpi_rollout.process.console import show


def doctor(out: str | None, env_id: str | None, as_json: bool, timeout_s: float) -> int:
    """Examine this machine; the root prints.  Return the exit code.  **Collective**, if there is a world.

    `out` is the folder of the output, None for where `run` writes; `timeout_s` how long each of the two processes may
    take.
    """
    world = Probe(lambda report: examine_world(report, timeout_s))
    try:
        if claimed_rank() != 0:
            return _stand_by(world, timeout_s)
        findings: list[Finding] = []
        folder = out or ("results" if os.path.isdir("results") else ".")
        for finding in _examine(world, folder, env_id, timeout_s):
            findings.append(finding)
            if not as_json:
                show(finding.lines)  # At once: a launcher may end this process any time.
        code, states = exit_code(findings), [finding.state for finding in findings]
        report = {"findings": [asdict(finding) for finding in findings], "exit_code": code}
        counts = ", ".join(f"{states.count(state)} {state}" for state in (OK, WARN, BAD))
        show([json.dumps(report) if as_json else counts])
        return code
    finally:
        world.end()


def _examine(world: Probe, folder: str, env_id: str | None, timeout_s: float) -> Iterator[Finding]:
    yield from world.findings(timeout_s)
    host = Probe(lambda report: examine_host(report, folder, env_id))
    try:
        yield from host.findings(timeout_s)
    finally:
        host.end()


def _stand_by(world: Probe, timeout_s: float) -> int:
    """Take part without a word, on any rank but the root; the root has the exit code.

    This rank leaves with the root or after a time: a launcher ends the whole job when a rank leaves early.
    """
    for _ in world.findings(timeout_s + GRACE_S):
        pass
    if world.is_alone is None:
        sleep(timeout_s)  # Until the root has printed its findings; its exit ends the job.
        return LaunchError.exit_code
    if not world.is_alone:
        world.wait(2 * timeout_s)
    return 0
