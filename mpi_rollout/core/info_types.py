"""Which infos of the envs are stored, and as what: the option `--store-infos`.

Types are a JSON object of names and types, see `core.column_types`.  Who only reads a configuration needs no Gymnasium:
this module does not import it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from mpi_rollout.core.column_types import check_names, mask_name, read_type
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import shortened

ALL = "all"
EXAMPLE = '\'{"lives": int, "position": [float, 3]}\''
OPTION = Option("store_infos")
STORED = "biuf"  # Kinds of dtypes.
WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|([A-Za-z_]\w*)')  # Texts, which stay as they are, and words outside of them.
Types: TypeAlias = dict[str, Any]


def read_types(text: str) -> Types | str:
    """Read the value of `--store-infos`: JSON in which words need no quotation marks.

    Raises
    ------
    UsageError
        It is none.
    """
    if text.strip() == ALL:
        return ALL
    try:
        value = json.loads(WORDS.sub(lambda match: match[0] if match[1] is None else f'"{match[1]}"', text))
    except ValueError as error:
        expected = f" must be {ALL} or types such as {EXAMPLE}, got {text!r:.200}: {error}"
        raise UsageError(OPTION, expected) from error
    return checked_types(value)


def checked_types(value: object) -> Types | str:
    """Return types in their one form: {"lives": "int64", "position": ["float64", 3]}.

    Raises
    ------
    UsageError
        They are none, or a file cannot hold them under these names.
    """
    if value == ALL:
        return ALL
    if not isinstance(value, Mapping):
        got = shortened(json.dumps(value), 80)
        raise UsageError(OPTION, f" must be {ALL} or types such as {EXAMPLE}, got {got}")
    types = {str(name): _stored(name, kind) for name, kind in value.items()}
    names = dict.fromkeys([*types, *map(mask_name, types)])  # Those that the user has typed are refused first.
    try:
        check_names(names)
    except ValueError as error:
        raise UsageError(OPTION, f": {error}") from error
    if len(names) < 2 * len(types):
        raise UsageError(OPTION, ": the mask of 'x' is stored as '_x'; an info may not have that name")
    return types


def _stored(name: object, kind: object) -> str | list[object]:
    try:
        dtype, shape = read_type(kind)
    except ValueError as error:
        raise UsageError(OPTION, f": {name!r} {error}") from error
    if dtype.kind not in STORED or dtype.itemsize > 8:
        expected = f": {name!r} must have a dtype of numbers, such as int, float or uint8, got {dtype}"
        raise UsageError(OPTION, expected)
    return [dtype.name, *shape] if shape else dtype.name
