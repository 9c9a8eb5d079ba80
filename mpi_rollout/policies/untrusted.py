"""What the readers of policy files share: files may be damaged, or made to do harm.

A reader refuses what is not known to be harmless, and judges a size before it takes memory of that size.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from mpi_rollout.errors import ActionError, Option, UsageError
from mpi_rollout.text import first_line, shortened

# What a zip may unpack to.  Weights are hardly compressible; zeros are, and fit into the first of these.
FREE_BYTES, MOST_TIMES = 64 << 20, 4
MOST_SAID = 2000  # Characters of what a file says, in a refusal.
JsonObject: TypeAlias = dict[str, Any]  # What a file says may be anything.


def damaged(what: object) -> UsageError:
    """Return the refusal of a damaged file."""
    return UsageError(f"the file is damaged: {what}")


def needs_trust(what: str, more: str = "") -> UsageError:
    """Return the refusal of a file with something that only a trusted one may have."""
    return UsageError(f"{what}; add ", Option("trust_policy"), f" if you trust the file{more}")


@contextmanager
def reading(*part: Option | str) -> Iterator[None]:
    """Raise UsageError of one line, whatever a damaged file raises; a refusal begins with the part's name."""
    try:
        yield
    except Exception as error:
        refusal = error if isinstance(error, UsageError | ActionError) else damaged(first_line(error))
        # Shortened first: among a million spaces, the search for line ends would take hours.
        texts = (shortened(part, MOST_SAID) if isinstance(part, str) else part for part in refusal.args)
        lines = (re.sub(r"\s*\n\s*", " ", text) if isinstance(text, str) else text for text in texts)
        raise UsageError(*part, *[": "] * bool(part), *lines) from error


def members_of(content: bytes, file_bytes: int | None = None) -> dict[str, bytes]:
    """Read the members of a zip, and check each by its checksum.

    `file_bytes` is the size of the file in which this zip is a member: a compressed zip is no larger than its file.
    """
    import zipfile  # Slow.

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
            raise damaged("it is compressed in a way in which policies are not")
        claimed = sum(info.file_size for info in infos)
        size = len(content) if file_bytes is None else file_bytes
        if claimed > FREE_BYTES + MOST_TIMES * size:
            raise damaged(f"its {size:,} bytes claim to unpack to {claimed:,}")
        # Read to the end, a member would unpack all that it has before the rest is dropped.
        members = {info.filename: archive.open(info).read(info.file_size) for info in infos}
    if len(members) < len(infos):
        raise damaged("it has a member twice")
    return members
