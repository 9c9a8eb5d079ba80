"""Parameters of policies on their way to the ranks."""

from typing import Any

import numpy as np
import pytest
from block_policies import Steering

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.model import made_model, make_model
from mpi_rollout.policies.parameters import layout_of, packed, unpacked

VALUES: dict[str, Any] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.int64(3), "none": np.zeros((0, 4))}


def test_parameters_come_back_as_they_were_by_name_and_in_order():
    layout = layout_of(VALUES)
    for given in (VALUES, dict(reversed(VALUES.items())), list(VALUES.values())):
        back = unpacked(packed(given, layout), layout)
        assert list(back) == list(VALUES)
        for name, value in VALUES.items():
            assert np.array_equal(back[name], value) and back[name].dtype == np.asarray(value).dtype


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"w": VALUES["w"], "n": 3}, "'none' of the policy is missing"),
        ({**VALUES, "more": 1}, "has no parameter 'more'; it has w, n, none"),
        ({**VALUES, "w": np.zeros((2, 3))}, r"'w' .* must be float32 of shape \(2, 3\), got float64 of shape \(2, 3\)"),
        ({**VALUES, "w": np.zeros((3, 2), np.float32)}, r"got float32 of shape \(3, 2\)"),
        ([1, 2], "has 3 parameters, got 2"),
        (None, "parameters must be a dict of arrays, such as a state dict, or all in order, got NoneType"),
    ],
)
def test_other_parameters_are_refused_by_name(given: Any, problem: str):
    with pytest.raises(UsageError, match=problem):
        packed(given, layout_of(VALUES))


def test_a_policy_gives_and_takes_its_parameters():
    own = Steering()
    model, other = made_model(Steering(), "it"), made_model(own, "it")
    layout = layout_of(model.parameters() or {})
    changed = {name: value + 1 for name, value in (model.parameters() or {}).items()}
    other.load(unpacked(packed(changed, layout), layout))
    assert all(np.array_equal(own.parameters[name], value) for name, value in changed.items())
    assert made_model(type("Bare", (), {"act": lambda *_: 0})(), "it").parameters() is None


def test_a_module_of_torch_needs_no_methods_for_its_parameters_of_which_bfloat16_travels_as_its_bits():
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Linear):
        def act(self, observations: Any, env_indices: Any, uniforms: Any) -> Any:
            return self(torch.from_numpy(observations)).detach().numpy()

    for dtype in (torch.float32, torch.bfloat16):
        model, other = (made_model(Module(3, 2, dtype=dtype), "it") for _ in range(2))
        parameters = model.parameters() or {}
        layout = layout_of(parameters)
        other.load(unpacked(packed(parameters, layout), layout))
        assert all(torch.equal(parameters[name], value) for name, value in (other.parameters() or {}).items())
        if dtype == torch.float32:
            observations = np.ones((4, 3), np.float32)
            assert np.array_equal(*(each.act(observations, np.arange(4), np.zeros((4, 0))) for each in (model, other)))


class Loading:
    def __init__(self, parameters: Any):
        self.parameters, self.num_uniforms = parameters, np.int64(2)

    def act(self, observations: Any, env_indices: Any, uniforms: Any) -> Any:
        return 0

    def load(self, parameters: Any) -> None:
        pass


@pytest.mark.parametrize("value", [{"nested": 1}, [1, [2, 3]], object()])
def test_what_is_no_array_is_no_parameter(value: Any):
    with pytest.raises(UsageError, match=r"the parameter 'w' of the policy is no array"):
        layout_of(make_model(lambda: Loading({"w": value})).parameters() or {})
    with pytest.raises(UsageError, match=r"the parameter 'w' of the policy is no array"):
        packed({**VALUES, "w": value}, layout_of(VALUES))


def test_a_policy_that_cannot_load_parameters_has_none_that_can_be_set():
    class Fixed:
        parameters = VALUES

        def act(self, observations: Any, env_indices: Any, uniforms: Any) -> Any:
            return 0

    assert make_model(Fixed).parameters() is None


@pytest.mark.parametrize(
    ("extras", "problem"),
    [
        ({"": "f4"}, "'' cannot be a name in HDF5"),
        ({"a//b": "f4"}, "'a//b' cannot be a name in HDF5"),
        ({"a/..": "f4"}, "'a/..' cannot be a name in HDF5"),
        ({"a": ("f4", (2, 0))}, r"'a' must have sizes of at least 1, such as .*, got \('f4', \(2, 0\)\)"),
        ({"a": ("f4", (-1,))}, r"'a' must have sizes of at least 1"),
        ({"a/b": "f4", "a": "i4"}, "'a' cannot hold 'a/b' and be a column itself"),
    ],
)
def test_extras_that_no_file_can_hold_are_refused(extras: dict, problem: str):
    policy = Loading({})
    policy.extras = extras
    with pytest.raises(UsageError, match=f"must have extras such as .*: {problem}"):
        make_model(lambda: policy)
    policy.extras = {"a": "f4", "ab": ("f4", (2, 3)), "b/a": "i8", "b/c": "?"}
    assert len(make_model(lambda: policy).extras) == 4
