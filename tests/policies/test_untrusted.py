"""Sizes in a file are claims of who made it."""

import io
import tracemalloc
import zipfile
import zlib

import pytest

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.untrusted import members_of, reading


def test_a_member_takes_no_more_memory_than_it_claims():
    """It says that it has three bytes, and unpacks to many."""
    small, large, file = b"abc", b"abc" + bytes(64 << 20), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", large)
    content = file.getvalue()
    for number, claimed in ((len(large), len(small)), (zlib.crc32(large), zlib.crc32(small))):
        content = content.replace(number.to_bytes(4, "little"), claimed.to_bytes(4, "little"))
    tracemalloc.start()
    members = members_of(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert members == {"a": small} and peak < 1 << 20


def test_a_refusal_is_short_whatever_a_file_says():
    """A million spaces take a moment, not hours."""
    with pytest.raises(UsageError) as caught, reading("policy p.zip"):
        raise UsageError("it says" + " " * 10**6 + "\nand more")
    assert len(str(caught.value)) < 3000
