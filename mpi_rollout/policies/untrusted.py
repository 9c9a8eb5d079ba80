"""What the readers of policy files share: files may be damaged, or made to do harm.

A reader refuses what is not known to be harmless, and judges a size before it takes memory of that size.
"""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import first_line

TRUST_IT = "add --trust-policy, or trust_policy=True of connect, if you trust the file"
MOST_BYTES = 1 << 30  # What a network may take to act, besides its weights.
# What a zip may unpack to.  Weights are hardly compressible; zeros are, and fit into the first of these.
FREE_BYTES, MOST_TIMES = 64 << 20, 4
# JSON may have so much more than its file: read, it takes fifty times its size.
FREE_JSON_BYTES = 4 << 20
# A pickle of weights may have so much, and so much more for each member of its zip: reading takes a second a MiB.
FREE_PICKLE_BYTES, MEMBER_PICKLE_BYTES = 1 << 20, 1 << 10
Json: TypeAlias = Any  # What a file says may be anything.
JsonObject: TypeAlias = dict[str, Json]


def damaged(what: object) -> UsageError:
    """Return the refusal of a damaged file."""
    return UsageError(f"the file is damaged: {what}")


def unknown(what: str, way_out: str = TRUST_IT) -> UsageError:
    """Return the refusal of a file with something that is not in a list of what is harmless."""
    return UsageError(f"has {what}, which is not known to be harmless; {way_out}")


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


def without_folder(members: dict[str, bytes]) -> dict[str, bytes]:
    """Return members by their names in the one folder that torch puts them in."""
    return {name.partition("/")[2]: member for name, member in members.items()}


def json_of(member: bytes, file_bytes: int) -> Json:
    """Read a member that is JSON, unless it is far larger than its file."""
    if len(member) > FREE_JSON_BYTES + file_bytes:
        raise damaged(f"its {file_bytes:,} bytes have JSON of {len(member):,}")
    return json.loads(member)
