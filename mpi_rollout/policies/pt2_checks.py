"""What the kernels of some operations of torch believe, checked before they are called.

Exporters write the inner names of layers, whose outer functions check the shapes.  Called with others, a kernel reads
or writes memory that is not the tensor's.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mpi_rollout.policies.untrusted import damaged

Given = Mapping[str, Any]  # The arguments of a call by their names.


def checked(call: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return an operation of torch that checks first what its kernel believes."""
    check = _CHECKS.get(call._schema.name.removeprefix("aten::"))
    if check is None:
        return call
    names = [argument.name for argument in call._schema.arguments]

    def checked_call(*arguments: Any, **options: Any) -> Any:
        if not check(dict(zip(names, arguments, strict=False)) | options):
            raise damaged(f"{call} takes tensors of other shapes")
        return call(*arguments, **options)

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


_CHECKS: dict[str, Callable[[Given], bool]] = {
    "native_batch_norm": _batch_norm_fits,
    "_native_batch_norm_legit_no_training": _batch_norm_fits,
    "native_group_norm": _group_norm_fits,
    "_weight_norm": _weight_norm_fits,
    "upsample_nearest1d": _upsample_fits,
    "upsample_nearest2d": _upsample_fits,
    "upsample_bilinear2d": _upsample_fits,
    "scaled_dot_product_attention": _attention_fits,
}
