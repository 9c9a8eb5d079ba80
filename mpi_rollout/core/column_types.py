"""The type and the name of a column that a user describes: an info (`--store-infos`, `connect(infos=...)`), an extra.

A type is a dtype, or a dtype and the sizes of the axes: `float`, `(float, (3,))`, `("f4", (8,))`, `["float", 3]`.  In a
name, `/` stands between the keys of nested dicts.  A column may have a mask beside it, which says which envs gave it.

Whoever only reads a configuration needs no Gymnasium: this module does not import it.
"""

from collections.abc import Collection

import numpy as np

NUMBERS = "biufc"  # Kinds of dtypes.


def read_type(kind: object) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and the shape that a type stands for.

    Raises
    ------
    ValueError
        It is no type, or not one of numbers.  The message follows the name of the column.
    """
    dtype, *sizes = kind if isinstance(kind, list | tuple) and kind else (kind,)
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = list(sizes[0])
    try:
        if dtype is None or isinstance(dtype, list | tuple | dict):  # NumPy has dtypes for them.
            raise TypeError
        numbers = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(f"must have a dtype such as int, float or uint8, got {dtype!r:.80}") from None
    if numbers.kind not in NUMBERS:
        raise ValueError(f"must have a dtype of numbers, such as int, float or uint8, got {numbers}")
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"must have sizes of at least 1, such as [float, 3], got {kind!r:.80}")
    return numbers, tuple(map(int, sizes))


def check_names(names: Collection[str]) -> None:
    """Refuse names that cannot stand in a file beside each other; ValueError."""
    for name in names:
        *outer, _ = parts = name.split("/")
        if not all(map(is_name, parts)):
            raise ValueError(f"{name!r} cannot be a name in HDF5; leave it out")
        for depth in range(1, len(outer) + 1):
            if (group := "/".join(outer[:depth])) in names:
                raise ValueError(f"{group!r} cannot hold {name!r} and be a column itself")


def is_name(key: str) -> bool:
    """Tell whether a key can be the name of an object in HDF5 and in messages."""
    return key not in ("", ".", "..") and "\0" not in key and key.isprintable()


def mask_name(name: str) -> str:
    """Return the name of a column's mask, as in Gymnasium's vector infos: `episode/_r` for `episode/r`."""
    *outer, last = name.split("/")
    return "/".join([*outer, f"_{last}"])
