"""A check of exported programs (.pt2), which torch may not load before: its loader executes code of a hostile file.

It unpickles what is pickled, evaluates expressions of sizes and guards, and puts names into Python code.  So pickles
must have nothing but tensors, expressions must be arithmetic, and names must be names.  The programs that
`torch.export.save` writes pass this check.
"""

import io
import json
import re
from typing import Any

import torch

from mpi_rollout.errors import UsageError, first_line
from mpi_rollout.policies.model import TRUST_IT

# `torch.ops.aten.linear.default`, `_operator.add`, `torch.sym_max`
_TARGET = re.compile(r"(torch\.ops\.(aten|prims|higher_order)|_operator|math)\.[\w.]+|torch\.sym_\w+")
_NAME = re.compile(r"[\w.+/ -]*")
_ARITHMETIC = re.compile(r"[\w .,'()\[\]+*/%<>=!&|~-]*")
_CALL = re.compile(r"([\w.]*|['\])]) *\(")
# What expressions call: SymPy's functions, those that torch adds to them, and a tensor's sizes.
_FUNCTIONS = {
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Abs", "Max", "Min", "Where", "Identity"),
    *("Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "ModularIndexing"),
    *("CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt", "ToFloat", "PowByNatural", "FloatPow", "LShift", "RShift"),
    *("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "size", "stride", "storage_offset"),
}
_EXPRESSIONS = {"expr_str", "guards_code"}
_TREES = {"in_spec", "out_spec", "context"}  # JSON within JSON.
_FREE = {"metadata", "as_string", "as_strings"}  # Told to people, or quoted where it is used.
_PLAIN_MEMBERS = ("data/weights/", "data/constants/", "extra/", ".data/")


def check_program(content: bytes) -> None:
    """Check that nothing in an exported program would be executed when it is loaded.

    Raises
    ------
    UsageError
        It may be; or the file is damaged.
    """
    try:  # The reader that torch loads it with.
        reader = torch._C.PyTorchFileReader(io.BytesIO(content))
        names = reader.get_all_records()
        if "archive_format" not in names:
            raise UsageError(f"was saved by an older torch, whose files may hold code; save it again, or {TRUST_IT}")
        for name in names:
            _check_member(name, reader)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the file is damaged: {first_line(error)}") from error


def _check_member(name: str, reader: Any) -> None:
    if name.endswith(".pt"):
        _check_pickle(name, reader.get_record(name))
    elif name.endswith("_config.json"):
        for entry in _json(name, reader).get("config", {}).values():
            if entry.get("use_pickle") or "obj" in entry["path_name"]:
                _check_pickle(entry["path_name"], reader.get_record(name.rpartition("/")[0] + "/" + entry["path_name"]))
    elif name.startswith("models/"):
        _check_strings(_json(name, reader), name)
    elif "/" in name and not name.startswith(_PLAIN_MEMBERS):
        raise UsageError(f"has {name!r}, which may hold code; {TRUST_IT}")


def _json(name: str, reader: Any) -> Any:
    try:
        return json.loads(reader.get_record(name))
    except ValueError as error:
        raise UsageError(f"the file is damaged: {name!r} is not JSON") from error


def _check_pickle(name: str, content: bytes) -> None:
    if not content:
        return
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise UsageError(f"has pickled code in {name!r}; {TRUST_IT}") from error


def _check_strings(value: Any, key: str) -> None:
    """Check all strings in JSON data, each by the key that it is under."""
    if isinstance(value, dict):
        for name, entry in value.items():
            _check_string(name, "")
            if name not in _FREE:
                _check_strings(entry, name)
    elif isinstance(value, list):
        for entry in value:
            _check_strings(entry, key)
    elif isinstance(value, str):
        _check_string(value, key)


def _check_string(text: str, key: str) -> None:
    if key in _TREES and text.startswith(("[", "{")):
        _check_strings(json.loads(text), "")
        return
    if key == "target":
        is_harmless = bool(_TARGET.fullmatch(text)) and "__" not in text and "from_file" not in text
    elif key in _EXPRESSIONS:
        is_harmless = _is_arithmetic(text)
    else:
        is_harmless = bool(_NAME.fullmatch(text))
    if not is_harmless:
        raise UsageError(f"has {text[:60]!r} as {key or 'a name'}, which may be code; {TRUST_IT}")


def _is_arithmetic(text: str) -> bool:
    """Tell whether an expression has words, numbers and operators only, and calls what is known."""
    called = [match[1].rpartition(".")[2] for match in _CALL.finditer(text)]
    return bool(_ARITHMETIC.fullmatch(text)) and "__" not in text and {*called} <= {"", *_FUNCTIONS}
