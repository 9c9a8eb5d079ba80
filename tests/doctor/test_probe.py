"""Findings, and the processes that make them: what ends one, or never returns, is a finding."""

import os
import time

from mpi_rollout.doctor.probe import BAD, FILES, WARN, Finding, Probe, exit_code


def test_what_ends_the_examining_process_is_a_finding():
    probe = Probe(lambda report: (report.doing("this", "do that"), os._exit(3)))
    found = list(probe.findings(10.0))
    probe.end()
    assert found == [Finding("this", "the process ended with exit code 3", BAD, "do that")]


def test_what_never_returns_is_a_finding():
    probe = Probe(lambda report: (report.doing("this", "do that", FILES), time.sleep(60)))
    found = list(probe.findings(0.2))
    probe.end()
    assert found == [Finding("this", "has not come to an end within 0.2 s", BAD, "do that", FILES)]


def test_a_check_that_raises_is_a_finding_and_the_next_follows():
    def examine(report):
        report.check("first", "do that", FILES, lambda: 1 / 0)
        report.check("second", "", FILES, lambda: [Finding("second", "fine")])
        report.done()

    probe = Probe(examine)
    found = list(probe.findings(10.0))
    probe.end()
    assert found == [Finding("first", "ZeroDivisionError: division by zero", BAD, "do that", FILES),
                     Finding("second", "fine", area=FILES)]  # fmt: skip


def test_bad_launch_outweighs_bad_files():
    bad_files, bad_launch = Finding("a", "", BAD, "", FILES), Finding("b", "", BAD)
    assert exit_code([Finding("c", "", WARN)]) == 0
    assert exit_code([bad_files]) == 74
    assert exit_code([bad_files, bad_launch]) == 78
