"""The operations of exported programs (.pt2) that only compute, and how they are read and called.

What is not listed here is refused: it may read files, compile, call itself, or draw random numbers.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.untrusted import TRUST_IT, Json, JsonObject, damaged, unknown
from mpi_rollout.policies.weights import DTYPES

Value: TypeAlias = Any  # What operations take and give: tensors, numbers, texts, dtypes, and lists of these.
DECOMPOSE = f"save what run_decompositions() of the exported program gives, or {TRUST_IT}"
# Names in torch.ops.aten.
_OF_ELEMENTS = (
    "abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor "
    "ceil clamp clamp_max clamp_min clip copysign cos cosh deg2rad div divide eq erf erfc exp exp2 expm1 fill floor "
    "floor_divide fmax fmin fmod frac ge greater gt hypot isclose isfinite isinf isnan le lerp less log log10 log1p "
    "log2 logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mul multiply "
    "nan_to_num ne neg negative not_equal pow rad2deg reciprocal remainder round rsqrt rsub sgn sign sin sinc sinh "
    "sqrt square sub subtract tan tanh threshold true_divide trunc where xlogy copy"
)
_ACTIVATIONS = (  # Dropout does nothing in a network that was exported in eval mode.
    "alpha_dropout celu dropout elu feature_dropout gelu glu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid "
    "log_softmax mish prelu relu relu6 selu sigmoid silu softmax softplus softshrink hardshrink tanhshrink _softmax "
    "_log_softmax _prelu_kernel"
)
_REDUCTIONS = (
    "all amax amin aminmax any argmax argmin cummax cummin cumprod cumsum linalg_norm linalg_vector_norm logcumsumexp "
    "logsumexp max mean median min norm prod std std_mean sum var var_mean argsort sort topk count_nonzero"
)
_PRODUCTS = (
    "addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul cross dot einsum inner linalg_cross linalg_matmul "
    "linalg_multi_dot linalg_vecdot linear matmul mm mv outer scaled_dot_product_attention tensordot "
    "cosine_similarity cdist pairwise_distance vdot _weight_norm"
)
_LAYERS = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d "
    "avg_pool2d avg_pool3d batch_norm channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d convolution embedding group_norm instance_norm layer_norm max_pool1d max_pool2d "
    "max_pool2d_with_indices max_pool3d max_pool3d_with_indices native_batch_norm "
    "_native_batch_norm_legit_no_training native_group_norm native_layer_norm pixel_shuffle pixel_unshuffle rms_norm "
    "upsample_bilinear2d upsample_nearest1d upsample_nearest2d"
)
_SHAPES = (
    "_to_copy _unsafe_view alias atleast_1d atleast_2d block_diag broadcast_tensors broadcast_to cat chunk clone "
    "column_stack concat concatenate constant_pad_nd contiguous detach diag diagonal diff dstack expand expand_as "
    "flatten flip fliplr flipud gather hstack hsplit index index_select lift_fresh lift_fresh_copy meshgrid movedim "
    "narrow one_hot pad permute ravel repeat reshape roll rot90 scatter scatter_add select slice split "
    "split_with_sizes squeeze stack swapaxes swapdims t take_along_dim tensor_split tile to transpose tril triu "
    "type_as unbind unflatten unfold unsqueeze view view_as vsplit vstack"
)
_CONSTANTS = (
    "arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like"
)
_SIZES = "sym_size sym_numel"
_ATEN = {
    name
    for names in (_OF_ELEMENTS, _ACTIVATIONS, _REDUCTIONS, _PRODUCTS, _LAYERS, _SHAPES, _CONSTANTS, _SIZES)
    for name in names.split()
}
# What may write into its first argument (`relu_`).  Others (`t_`) would change the shape of a weight from call to call.
_IN_PLACE = {f"{name}_" for names in (_OF_ELEMENTS, _ACTIVATIONS, "scatter scatter_add") for name in names.split()}
# Checks of what was true when the program was exported: they give nothing.
_CHECKS = {
    *("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range"),
    *("sym_constrain_range_for_size", "_check_is_size"),
}
_ON_NUMBERS = "add sub mul floordiv truediv mod neg eq ne lt le gt ge and_ or_ not_"
_NUMBERS: dict[str, Callable[..., Value]] = {
    f"_operator.{name}": getattr(operator, name) for name in _ON_NUMBERS.split()
} | {
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "torch.sym_float": float,
    "torch.sym_int": int,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_not": operator.not_,
}
_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}


class _Name(str):
    """The name of a value that an operation takes."""


class _Device:
    """Where an operation makes a tensor: on the CPU, or nowhere."""


class Operation(NamedTuple):
    """A call: what it takes by name, what its results are called, and which values nobody needs afterwards."""

    call: Callable[..., Value]
    arguments: dict[str, Value]
    results: list[str | list[str]]
    last_uses: list[str]


def read_operations(nodes: list[JsonObject], kept: set[str]) -> list[Operation]:
    """Read the operations of a graph, in which the `kept` values are needed until the end."""
    operations: list[Operation] = []
    needed = set(kept)
    for node in reversed(nodes):
        target = node["target"]
        if target.startswith("torch.ops.aten.") and target.split(".")[3] in _CHECKS:
            continue
        call, names_of_all = _call_of(target)
        arguments = {entry["name"]: _argument(entry["arg"]) for entry in node["inputs"]}
        used = set(_values_in(list(arguments.values())))
        for name in ("layout", "pin_memory"):
            arguments.pop(name, None)
        if "device" in names_of_all and "_like" not in target:  # A tensor is made where the call says, not the file.
            arguments["device"] = _Device()
        results = [_result(output) for output in node["outputs"]]
        names = [name for result in results for name in ([result] if isinstance(result, str) else result)]
        last_uses = [name for name in (*used, *names) if name not in needed]
        needed |= used
        operations.append(Operation(call, arguments, results, last_uses))
    return operations[::-1]


def _call_of(target: str) -> tuple[Callable[..., Value], list[str]]:
    """Return the function that an operation calls, and the names of its arguments, if it has a schema."""
    if target in _NUMBERS:
        return partial(_small, _NUMBERS[target]), []
    *folder, name, overload = target.split(".")
    is_known = folder == ["torch", "ops", "aten"] and name in _ATEN | _IN_PLACE
    call = getattr(getattr(torch.ops.aten, name, None), overload, None) if is_known else None
    if not isinstance(call, torch._ops.OpOverload):
        raise unknown(f"the operation {target[:80]!r}", DECOMPOSE)
    written = [argument.name for argument in call._schema.arguments if argument.is_write]
    if written != (["self"] if name.endswith("_") else []):
        raise UsageError(f"has the operation {target[:80]!r}, which writes into its arguments; {TRUST_IT}")
    return _checked(call), [argument.name for argument in call._schema.arguments]


def _small(function: Callable[..., Value], /, **numbers: Value) -> Value:
    """Compute a number of at most 64 bits, as sizes are: a chain of products could be of any length."""
    number = function(*numbers.values())
    if abs(number) >= 2**63:
        raise damaged("it computes a size of more than 64 bits")
    return number


def _values_in(argument: Value) -> Iterable[str]:
    if type(argument) is _Name:
        yield argument
    elif type(argument) is list:
        for entry in argument:
            yield from _values_in(entry)


def _result(output: JsonObject) -> str | list[str]:
    ((kind, value),) = output.items()
    if kind == "as_tensors":
        return [str(entry["name"]) for entry in value]
    if kind not in ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        raise unknown(f"an operation that gives more than tensors and numbers ({kind})")
    return str(value["name" if kind == "as_tensor" else "as_name"])


_PLAIN: dict[str, Callable[[Json], Value]] = {  # Arguments of one kind.
    "as_none": lambda _: None,
    "as_tensor": lambda entry: _Name(entry["name"]),
    "as_name": _Name,
    "as_int": int,
    "as_bool": bool,
    "as_float": float,  # Also of the texts Infinity and NaN.
    "as_string": str,
    "as_scalar_type": DTYPES.__getitem__,
    "as_memory_format": _MEMORY_FORMATS.__getitem__,
    "as_device": lambda _: _Device(),
    "as_layout": lambda _: torch.strided,
}


def _argument(argument: JsonObject) -> Value:
    """Read an argument: a number, a text, a dtype, the names of values, or a list of these."""
    ((kind, value),) = argument.items()
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return _argument(value)
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools", "as_optional_tensors"):
        return [_argument(entry) for entry in value]
    if kind in ("as_ints", "as_floats", "as_bools", "as_tensors"):
        return [_argument({kind[:-1]: entry}) for entry in value]
    raise unknown(f"an argument that is no tensor and no number ({kind})")


def filled(argument: Value, values: Mapping[str, Value], device: str) -> Value:
    """Return an argument with the values that it names."""
    if type(argument) is _Name:
        return values[argument]
    if type(argument) is list:
        return [filled(entry, values, device) for entry in argument]
    return device if type(argument) is _Device else argument


def named_results(names: list[str | list[str]], returned: Value) -> Iterable[tuple[str, Value]]:
    """Yield the results of an operation by their names."""
    for name, result in zip(names, [returned] if len(names) == 1 else returned, strict=True):
        yield from [(name, result)] if isinstance(name, str) else zip(name, result, strict=True)


Given: TypeAlias = Mapping[str, Value]  # The arguments of a call by their names.


def _checked(call: torch._ops.OpOverload) -> Callable[..., Value]:
    """Return an operation of torch that checks first what its kernel believes.

    Exporters write the inner names of layers, whose outer functions check the shapes.  Called with others, a kernel
    reads or writes memory that is not the tensor's.
    """
    check = _KERNEL_CHECKS.get(call._schema.name.removeprefix("aten::"))
    if check is None:
        return call

    def checked_call(**arguments: Value) -> Value:
        if not check(arguments):
            raise damaged(f"{call} takes tensors of other shapes")
        return call(**arguments)

    return checked_call


def _batch_norm_fits(given: Given) -> bool:
    image, moments = given["input"], ("running_mean", "running_var")
    has_moments = given.get("training", False) or all(given[name] is not None for name in moments)
    return has_moments and image.dim() >= 2 and _have(image.shape[1], given, ("weight", "bias", *moments))


def _group_norm_fits(given: Given) -> bool:
    image = given["input"]
    rows, channels, *places = image.shape if image.dim() >= 2 else (-1, -1)
    sizes = given["N"], given["C"], given["HxW"]
    return sizes == (rows, channels, math.prod(places)) and _have(channels, given, ("weight", "bias"))


def _have(size: int, given: Given, names: tuple[str, ...]) -> bool:
    """Return whether these tensors are vectors of a size, or None."""
    return all(given.get(name) is None or given[name].shape == (size,) for name in names)


def _weight_norm_fits(given: Given) -> bool:
    weight, lengths, axis = given["v"], given["g"], given.get("dim", 0)
    return 0 <= axis < weight.dim() and lengths.shape == tuple(
        size if place == axis else 1 for place, size in enumerate(weight.shape)
    )


def _upsample_fits(given: Given) -> bool:
    """Return whether no step between source pixels is longer than the image: longer ones leave the integers."""
    image = given.get("self", given.get("input"))
    scales = [given.get(name) for name in (["scales"] if "scales" in given else ["scales_h", "scales_w"])]
    assert isinstance(image, torch.Tensor)
    sizes = image.shape[-len(scales) :]
    return all(scale is None or scale * size >= 1 for scale, size in zip(scales, sizes, strict=True))


def _attention_fits(given: Given) -> bool:
    query, key, value = (given[name] for name in ("query", "key", "value"))
    return (
        min(query.dim(), key.dim(), value.dim()) >= 2
        and query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
    )


_KERNEL_CHECKS: dict[str, Callable[[Given], bool]] = {
    "native_batch_norm": _batch_norm_fits,
    "_native_batch_norm_legit_no_training": _batch_norm_fits,
    "native_group_norm": _group_norm_fits,
    "_weight_norm": _weight_norm_fits,
    "upsample_nearest1d": _upsample_fits,
    "upsample_nearest2d": _upsample_fits,
    "upsample_bilinear2d": _upsample_fits,
    "scaled_dot_product_attention": _attention_fits,
}
