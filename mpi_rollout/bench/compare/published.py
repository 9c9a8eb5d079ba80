"""Figures of systems that are not measured here: their authors' own, or measured formerly, on other machines.

They are never mixed with what is measured: a report has them in lines of their own, each with its source.
"""

from typing import NamedTuple

from mpi_rollout.bench.compare.comparison import ComparisonFile

FORMER = "measured formerly: 64 CartPole-v1, random actions, 2 cores of an AMD EPYC virtual machine, 2026-11-22"
ENVPOOL = "first README of EnvPool (github.com/sail-sg/envpool, commit 036ae89, 2021-11), Atari with frame skip 4"


class Published(NamedTuple):
    """A figure of a system that the one who asks could not measure.

    Parameters
    ----------
    system
        Its name in `systems`.
    figure
        In words, with the version.
    """

    system: str
    figure: str
    source: str


PUBLISHED = (
    Published("puffer-serial", "178,000 env steps/s, 0.40 of bare loops on both cores (PufferLib 3.0.0)", FORMER),
    Published("puffer-multi", "10,200 env steps/s, 0.02 (3.0.0; its workers need a spare core)", FORMER),
    Published("tianshou-dummy", "141,000 env steps/s, 0.33 (Tianshou 2.0.1)", FORMER),
    Published("tianshou-subproc", "22,000 env steps/s, 0.05 (Tianshou 2.0.1)", FORMER),
    Published("tianshou-shmem", "24,000 env steps/s, 0.06 (Tianshou 2.0.1)", FORMER),
    Published("torchrl-serial", "10,000 env steps/s, 0.02 (TorchRL 0.14.1)", FORMER),
    Published("torchrl-parallel", "9,000 env steps/s, 0.02 (TorchRL 0.14.1)", FORMER),
    Published("torchrl-collector", "17,000 env steps/s, 0.04 (TorchRL 0.14.1)", FORMER),
    Published("rllib-local", "59,000 env steps/s, 0.13 (Ray 2.60.0)", FORMER),
    Published("rllib-remote", "57,000 env steps/s, 0.13 (Ray 2.60.0)", FORMER),
    Published("sample-factory", "25,000 env steps/s, 0.04 (Sample Factory 2.1.1)", FORMER),
    Published("gymnax", "3,800,000 env steps/s (gymnax 1.0.1, JAX 0.10.2)", FORMER),
    Published("envpool", "670,000 env steps/s (EnvPool 1.2.5)", FORMER),
)

# Frames per second, by number of cores of a machine: a laptop (12), two servers (96, 96), a DGX-A100 (256).
ANNOUNCED = {
    "for-loop": (4_876, 3_817, 4_053, 4_336),
    "subprocess": (18_249, 42_885, 19_560, 79_509),
    "Sample Factory": (27_035, 192_074, 262_963, 639_389),
    "EnvPool, sync": (40_791, 175_938, 159_191, 470_170),
    "EnvPool, async": (50_513, 352_243, 410_941, 845_537),
}
"""The table of `ENVPOOL`: each system's highest, by its row."""
MACHINES = ("laptop, 12 cores", "TPU-VM, 96", "2 x EPYC 7352, 96", "DGX-A100, 256")


def lines(file: ComparisonFile) -> list[str]:
    """Say what is known elsewhere of systems that have no sample here."""
    measured = {sample.system for sample in file.samples.turns if not sample.error}
    systems = file.comparison.all_systems
    return [
        f"not measured here: {systems[name].title}: {figure}; {source}"
        for name, figure, source in PUBLISHED
        if name in systems and name not in measured
    ]
