"""The batch scripts of `slurm/`, submitted by sbatch to a real SLURM of two virtual nodes."""

from collections.abc import Iterator

import pytest
from slurm_cluster import NODES, Cluster, cluster, missing


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    lack = missing()
    if lack:
        pytest.skip(lack)
    with cluster() as each:
        yield each


def test_the_nodes_of_the_cluster_have_host_names_of_their_own_and_a_file_system_in_common(slurm, tmp_path):
    script = tmp_path / "hosts.sbatch"
    script.write_text("#!/bin/bash\nsrun --ntasks-per-node=1 bash -c 'hostname > $(hostname).host'\n")
    assert slurm.finish(slurm.submit(tmp_path, "--nodes=2", str(script)))["JobState"] == "COMPLETED"
    assert sorted(path.read_text().strip() for path in tmp_path.glob("*.host")) == [*NODES]
