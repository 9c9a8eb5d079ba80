"""Exported programs (.pt2), run without torch's loader, which unpickles, compiles and evaluates what a file says.

A program is a list of operations of torch on tensors and numbers.  Here they are called one by one, and those alone
that only compute, see `pt2_operations`.  Nothing else of a file is used: no pickle, no expression, no guard.
Before a program is called for some number of rows, it is played on tensors without memory, to know what it will take.
"""

import json
import math
import re
from collections.abc import Mapping
from weakref import finalize

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.networks import Input
from mpi_rollout.policies.pt2_operations import Value, filled, named_results, read_operations
from mpi_rollout.policies.untrusted import MOST_BYTES, TRUST_IT, JsonObject, json_of, members_of, without_folder
from mpi_rollout.policies.weights import DTYPES, Stored, numpy_dtype, tensors_of


class Program:
    """A program that may be called; `inputs` are what it takes, by path."""

    def __init__(self, content: bytes):
        members = without_folder(members_of(content))
        models = [name for name in members if name.startswith("models/")]
        if len(models) != 1:
            raise UsageError(
                f"has {len(models)} programs, expected one that torch.export.save of torch 2.9 or newer has written; "
                f"save it again, or {TRUST_IT}"
            )
        name = models[0].removeprefix("models/").removesuffix(".json")
        model = json_of(members[models[0]], len(content))
        graph_module = model["graph_module"]
        graph, signature = graph_module["graph"], graph_module["signature"]
        self._weights = _tensors(members, "weights", name, len(content))
        known = self._weights | _tensors(members, "constants", name, len(content))
        names, self._users = _names(signature["input_specs"])
        self._bound = {own: known[stored] for own, stored in names.items()}
        self._outputs = [_output(spec) for spec in signature["output_specs"]]
        values = [graph["tensor_values"][user] for user in self._users]
        self.inputs = _inputs(graph_module["module_call_graph"][0]["signature"], values)
        self._rows = _range_of_rows(values[0], model["range_constraints"])
        self._operations = read_operations(graph["nodes"], {*self._outputs, *names, *self._users})
        self._judged: set[int] = set()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return its weights by their names."""
        return self._weights

    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take other weights, of the same names and shapes."""
        for name, weight in weights.items():
            self._weights[name].copy_(weight)

    def __call__(self, argument: torch.Tensor | dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return its outputs for a tensor, or for a dict of tensors by their paths.

        ValueError if it was not exported for so many rows, UsageError if it would take too much memory.
        """
        tensors = [argument[path] for path in self.inputs] if isinstance(argument, dict) else [argument]
        rows = len(tensors[0])
        if rows not in self._judged:
            first, last = self._rows
            if not first <= rows <= last:
                raise ValueError(f"takes batches of {first} to {last} only, got {rows}")
            self.judge([tensor.to("meta") for tensor in tensors])
            self._judged.add(rows)
        return self._run(self._bound, tensors, "cpu")

    def judge(self, tensors: list[torch.Tensor]) -> None:
        """Play the program on tensors without memory, and refuse it if it would take too much."""
        limit = MOST_BYTES + sum(tensor.nbytes for tensor in self._bound.values())
        with _Bounded(limit):
            self._run({name: tensor.to("meta") for name, tensor in self._bound.items()}, tensors, "meta")

    def _run(
        self, bound: dict[str, torch.Tensor], tensors: list[torch.Tensor], device: str
    ) -> tuple[torch.Tensor, ...]:
        values: dict[str, Value] = bound | dict(zip(self._users, tensors, strict=True))
        for operation in self._operations:
            arguments = {name: filled(argument, values, device) for name, argument in operation.arguments.items()}
            returned = operation.call(**arguments)
            for name, result in named_results(operation.results, returned):
                values[name] = result
            for name in operation.last_uses:
                values.pop(name, None)
        return tuple(values[name] for name in self._outputs)


class _Bounded(TorchDispatchMode):
    """Within it there is a limit for the tensors that are there at a time, also in the midst of an operation."""

    def __init__(self, limit: int):
        super().__init__()
        self._limit, self._held = limit, 0

    def __torch_dispatch__(self, function: Value, types: object, args: Value = (), kwargs: Value = None) -> Value:
        returned = function(*args, **(kwargs or {}))
        for tensor in returned if isinstance(returned, tuple | list) else [returned]:
            if isinstance(tensor, torch.Tensor):
                self._hold(tensor.nbytes)
                finalize(tensor, self._hold, -tensor.nbytes)
        needed = self._held + (_scratch_bytes(returned, *args) if function in _CONVOLUTIONS else 0)
        if needed > self._limit:
            raise UsageError(f"needs {needed:,} bytes at a time, more than {self._limit:,}; {TRUST_IT}")
        return returned

    def _hold(self, nbytes: int) -> None:
        self._held += nbytes


_CONVOLUTIONS = {torch.ops.aten.convolution.default}


def _scratch_bytes(
    output: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, _bias: Value, *options: Value, **_more: Value
) -> int:
    """Return at most how much memory a convolution on a CPU takes besides its tensors, which no tensor shows.

    A kernel may write each patch of the image that the weights meet, of the whole batch; those of oneDNN, which has the
    float32, need one row of the batch at a time.
    """
    is_transposed = options[3]
    patches = math.prod(image.shape[2:] if is_transposed else output.shape[2:])
    channels = output.shape[1] if is_transposed else image.shape[1]
    rows = 1 if image.dtype == torch.float32 and torch.backends.mkldnn.is_available() else len(image)
    return rows * channels * math.prod(weight.shape[2:]) * patches * image.element_size()


def _tensors(members: dict[str, bytes], kind: str, model: str, file_bytes: int) -> dict[str, torch.Tensor]:
    """Return the weights or constants of a program by their names."""
    config = json_of(members[f"data/{kind}/{model}_{kind}_config.json"], file_bytes)["config"]
    stored = {}
    for name, entry in config.items():
        meta, path = entry["tensor_meta"], entry["path_name"]
        if entry["use_pickle"] or meta is None:
            raise UsageError(f"has pickled {kind} {path!r}, which may be code; {TRUST_IT}")
        shape, strides = ([number["as_int"] for number in meta[key]] for key in ("sizes", "strides"))
        stored[name] = Stored(path, DTYPES[meta["dtype"]], shape, strides, meta["storage_offset"]["as_int"])
    return tensors_of(stored, members, f"data/{kind}/")


_TENSORS = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}


def _names(specs: list[JsonObject]) -> tuple[dict[str, str], list[str]]:
    """Return which tensors of the file have which names in the graph, and the names of the inputs."""
    names, users = {}, []
    for spec in specs:
        ((kind, entry),) = spec.items()
        if kind in _TENSORS:
            names[entry["arg"]["name"]] = entry[_TENSORS[kind]]
        elif kind == "user_input" and "as_tensor" in entry["arg"]:
            users.append(entry["arg"]["as_tensor"]["name"])
        else:
            raise UsageError(f"takes more than tensors ({kind}); {TRUST_IT}")
    return names, users


def _output(spec: JsonObject) -> str:
    ((kind, entry),) = spec.items()
    if kind != "user_output" or "as_tensor" not in entry["arg"]:
        raise UsageError(f"returns more than tensors ({kind}); {TRUST_IT}")
    return str(entry["arg"]["as_tensor"]["name"])


def _inputs(call: JsonObject, values: list[JsonObject]) -> dict[str, Input]:
    """Return the inputs of a program: one tensor, or one dict of them."""
    arguments, named = json.loads(call["in_spec"])[1]["children_spec"]
    returned = json.loads(call["out_spec"])[1]
    returns = [returned["type"], *(child["type"] for child in returned["children_spec"])]
    if returns[0] not in (None, "builtins.tuple", "builtins.list") or any(returns[1:]):
        raise UsageError(f"must return a tensor or a tuple of tensors, returns {returns[0]}")
    several: JsonObject = {"type": "several arguments"}
    first = arguments["children_spec"][0] if len(arguments["children_spec"]) == 1 else several
    if named["children_spec"] or first["type"] not in (None, "builtins.dict"):
        raise UsageError(f"must take one tensor, or one dict of tensors, takes {first['type']}")
    paths = [""] if first["type"] is None else json.loads(first["context"])
    return {
        path: Input(numpy_dtype(DTYPES[value["dtype"]]), tuple(size.get("as_int") for size in value["sizes"]))
        for path, value in zip(paths, values, strict=True)
    }


_SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)|(\w+)")


def _range_of_rows(value: JsonObject, ranges: JsonObject) -> tuple[float, float]:
    """Return for how many rows a program was exported."""
    size: JsonObject = value["sizes"][0] if value["sizes"] else {"as_int": 0}
    if "as_int" in size:
        return size["as_int"], size["as_int"]
    symbol = _SYMBOL.fullmatch(size["as_expr"]["expr_str"])
    allowed = ranges.get(symbol[1] or symbol[2], {}) if symbol else {}
    first, last = allowed.get("min_val"), allowed.get("max_val")
    return 0 if first is None else first, math.inf if last is None else last
