"""What the readers of policy files share: files may be damaged, or made to do harm.

A reader refuses what is not known to be harmless, and judges a size before it takes memory of that size.
"""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import first_line

TRUST_IT = "add --trust-policy, or trust_policy=True of connect, if you trust the file"
# What a zip may unpack to.  Weights are hardly compressible; zeros are, and fit into the first of these.
FREE_BYTES, MOST_TIMES = 64 << 20, 4
JsonObject: TypeAlias = dict[str, Any]  # What a file says may be anything.


def damaged(what: object) -> UsageError:
    """Return the refusal of a damaged file."""
    return UsageError(f"the file is damaged: {what}")


@contextmanager
def reading(*part: Option | str) -> Iterator[None]:
    """Raise UsageError in this context, whatever a damaged file raises; a refusal begins with the part's name."""
    try:
        yield
    except Exception as error:
        refusal = error if isinstance(error, UsageError) else damaged(first_line(error))
        raise UsageError(*part, *[": "] * bool(part), *refusal.args) from error


def members_of(content: bytes, file_bytes: int | None = None) -> dict[str, bytes]:
    """Read the members of a zip, and check each by its checksum.

    `file_bytes` is the size of the file in which this zip is a member: a compressed zip is no larger than its file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
            raise damaged("it is compressed in a way in which policies are not")
        claimed = sum(info.file_size for info in infos)
        size = len(content) if file_bytes is None else file_bytes
        if claimed > FREE_BYTES + MOST_TIMES * size:
            raise damaged(f"its {size:,} bytes claim to unpack to {claimed:,}")
        members = {info.filename: archive.read(info) for info in infos}
    if len(members) < len(infos):
        raise damaged("it has a member twice")
    return members
