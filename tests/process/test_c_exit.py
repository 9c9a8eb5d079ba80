"""Who calls C's `exit()` is heard, for as long as that is asked for."""

import subprocess
import sys

import pytest
from jobs import job_environment

PROGRAM = """
import ctypes, os
from mpi_rollout.process.c_exit import HeardExit
heard = HeardExit(lambda code: os._exit(code + 1))
heard.begin()
if {is_over}:
    heard.end()
ctypes.CDLL(None).exit(3)
"""


@pytest.mark.full_start
@pytest.mark.parametrize(("is_over", "code"), [(False, 4), (True, 3)])
def test_a_handler_gets_the_code_of_an_exit_until_it_is_taken_back(is_over: bool, code: int):
    program = [sys.executable, "-c", PROGRAM.format(is_over=is_over)]
    assert subprocess.run(program, env=job_environment(), timeout=300).returncode == code
