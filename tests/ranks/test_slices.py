"""One rank's envs and what orders make of them, in a loop and natively vectorized."""

from contextlib import nullcontext
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Counting, Failing, Telling
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from noticing import note_only, noted
from single_rank import driver_of

from mpi_rollout.core.layout import Contents
from mpi_rollout.core.partition import Division
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.exchange import Command
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.infos import merge_infos
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.process.interrupts import Cut
from mpi_rollout.ranks.native_slices import NativeSlice
from mpi_rollout.ranks.slices import Slice


class Native(VectorEnv):
    """Three envs that observe what they were reset with, and give what the test says in their next step."""

    num_envs = 3
    single_observation_space = spaces.Box(-99, 99, (2,), np.float32)
    single_action_space = spaces.Discrete(5)
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, **outputs: Any):
        self.given: list[tuple[Any, Any]] = []
        self.outputs: dict[str, Any] = {
            "observations": np.ones((3, 2), np.float32), "rewards": np.arange(3.0), "terminations": np.zeros(3, bool),
            "truncations": np.array([False, True, False]), "infos": {},
        } | outputs  # fmt: skip

    def reset(self, *, seed=None, options=None):
        self.given.append((seed, options))
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions):
        self.given.append(tuple(actions.tolist()))
        return tuple(self.outputs.values())

    def call(self, name, *args, **kwargs):
        return [(name, index, args, kwargs) for index in range(3)]

    def set_attr(self, name, values):
        self.given.append((name, values))

    def render(self):
        return ("a", "b", "c")


class InParts(Native):
    """The same, with steps in parts, which are noted."""

    interrupts = False

    def send(self, actions):
        self.given.append(("send", *actions.tolist()))

    def recv(self):
        self.given.append(("recv",))

    def outcome(self, _states):
        self.given.append(("outcome",))
        if self.interrupts:
            raise Cut
        return tuple(self.outputs.values())


def native(
    on_fault: OnFault | None = None,
    pickles_infos: bool = False,
    counts_only: bool = False,
    kind: type[Native] = Native,
    **outputs: Any,
) -> tuple[Slice, Native]:
    """A slice of such envs."""
    envs = kind(**outputs)
    options = {"counts_only": counts_only, "pickles_infos": pickles_infos}
    contents = Contents(envs.single_observation_space, envs.single_action_space, **options)
    [exchange] = Exchanges(SingleRankComm(), Division(3, 1), contents).all
    return NativeSlice(exchange, envs, on_fault=on_fault or OnFault()), envs


def loop(make: Any = Counting, **options: Any) -> Slice:
    """A slice of three envs; the second one of two, which begins with env 3, is returned."""
    return driver_of(make, 6, num_groups=2, **options).worker.slices[1]


def observed(part: Slice) -> list[list[int]]:
    return part.exchange.slot_rows[0].observations.tolist()


def step(part: Slice) -> None:
    """Obey an order to take one step."""
    part.do(Command.STEP, (), never)


def never() -> bool:
    """Nobody asks to stop."""
    return False


@pytest.mark.parametrize(
    ("seed", "first"), [(10, [13, 14, 15]), ([0, 1, 2, 7, 8, 9], [7, 8, 9]), ([None] * 6, [0, 0, 0])]
)
def test_seeds_are_for_all_envs_and_each_takes_its_own(seed: Any, first: list[int]):
    part = loop()
    part.reset(seed)
    assert [row[0] for row in observed(part)] == first


def test_a_mask_and_options_are_for_all_envs_too():
    part = loop(Telling, infos="all")
    mask = np.array([True, True, True, False, True, False])
    part.reset(10)
    part.reset(None, mask, {"wind": 3})
    assert [row[1] for row in observed(part)] == [0, 1, 0]
    part.exchange.infos.forget()
    part.reset(None, None, [{"wind": index} for index in range(6)])
    [(row, envs, infos)] = part.exchange.infos.take()
    assert row == 0 and merge_infos(3, [(envs, infos)])["options"]["wind"].tolist() == [3, 4, 5]


def test_natively_vectorized_envs_are_seeded_as_a_whole():
    part, envs = native()
    part.reset(10)
    part.reset([4, 5, 6])
    part.reset(None, np.array([True, False, True]), {"wind": 3})
    assert envs.given[:2] == [(10, None), ([4, 5, 6], None)]
    seed, options = envs.given[2]
    assert seed is None and options["wind"] == 3 and options["reset_mask"].tolist() == [True, False, True]


def test_what_natively_vectorized_envs_give_is_copied_into_the_slot():
    part, envs = native()
    part.exchange.order.put([np.array([4, 3, 2])])
    step(part)
    [slot] = part.exchange.slot_rows
    assert envs.given == [(4, 3, 2)] and part.num_steps == 1
    assert slot.observations.tolist() == [[1, 1]] * 3 and slot.rewards.tolist() == [0, 1, 2]
    assert slot.truncations.tolist() == [False, True, False] and not slot.terminations.any()


@pytest.mark.parametrize(
    ("way", "calls"), [("whole", "SRSORSORO"), ("cut", "SRSORO"), ("failing", "SRSOR"), ("interrupted", "SRSOR")]
)
def test_envs_whose_steps_have_parts_are_in_the_next_one_while_a_row_is_written(way: str, calls: str):
    """No step is left behind: not where a fragment is cut short, and not where its row is refused, or interrupted."""
    errors = {"failing": DataError, "interrupted": Cut}
    part, envs = native(kind=InParts, **({"rewards": None} if way == "failing" else {}))
    envs.interrupts = way == "interrupted"
    part.exchange.make_room(3)
    part.exchange.order.num_rows, actions = 3, np.arange(9).reshape(3, 3) % 5
    part.exchange.order.put([actions], 3)
    with pytest.raises(errors[way]) if way in errors else nullcontext():
        part.do(Command.STEP, (), lambda: way == "cut" and part.num_done == 1)
    assert "".join(name[0].upper() for name, *_ in envs.given) == calls
    sent = [row for name, *row in envs.given if name == "send"]
    assert sent == actions[: len(sent)].tolist() and part.num_done == calls.count("O") - (way in errors)


def test_observations_of_another_dtype_are_cast_unless_that_is_refused():
    part, _ = native(observations=np.full((3, 2), 0.5))
    note_only()
    step(part), step(part)
    assert observed(part) == [[0.5, 0.5]] * 3
    assert [text[:13] for text in noted()] == ["envs 0 to 2: "]
    strict, _ = native(OnFault(strict_dtypes=True), observations=np.full((3, 2), 0.5))
    with pytest.raises(DataError, match=r"^envs 0 to 2: .* should be float32"):
        step(strict)


@pytest.mark.parametrize(
    ("on_fault", "outputs", "message"),
    [
        (OnFault(check_finite=True), {"rewards": np.array([0, np.nan, 0])}, "env 1: its reward is nan"),
        (
            OnFault(check_bounds=True),
            {"observations": np.full((3, 2), 100, np.float32)},
            "env 0: its observation is 10",
        ),
    ],
)
@pytest.mark.parametrize("counts_only", [False, True])
def test_wrong_values_of_natively_vectorized_envs_are_found(
    on_fault: OnFault, outputs: dict, message: str, counts_only: bool
):
    part, _ = native(on_fault, counts_only=counts_only, **outputs)
    with pytest.raises(DataError, match=message):
        step(part)
    calm, _ = native(**outputs)
    step(calm)


def test_infos_go_with_the_slot_if_all_are_wanted():
    part, _ = native(pickles_infos=True)
    step(part)
    assert part.exchange.infos.take() == []
    part.envs.outputs["infos"] = {"lives": np.array([3, 2, 1])}
    step(part)
    [(row, envs, infos)] = part.exchange.infos.take()
    assert row == 0 and envs == slice(0, 3) and infos["lives"].tolist() == [3, 2, 1]


def test_methods_and_attributes_are_those_of_the_envs_that_are_here():
    part = loop(Telling)
    part.reset(10)
    assert part.call_some([5, 0, 3], "weigh", (2,), {"offset": 0.5}) == {5: 18.5, 3: 16.5}
    assert part.call_some([0, 1], "weigh", (2,), {}) == {}
    part.set_some([0, 4], "mass", [9.0, 7.0])
    assert part.call_some([3, 4, 5], "mass", (), {}) == {3: 1.5, 4: 7.0, 5: 1.5}


def test_natively_vectorized_envs_are_called_all_together():
    part, envs = native()
    assert part.call_some([0, 1, 2], "weigh", (2,), {})[1] == ("weigh", 1, (2,), {})
    part.set_some([2, 0, 1], "mass", ["c", "a", "b"])
    assert envs.given == [("mass", ["a", "b", "c"])]
    for call in (lambda: part.call_some([0, 1], "weigh", (), {}), lambda: part.set_some([0], "mass", [1])):
        with pytest.raises(AttributeError, match=r"are called all together, got . of 3; use call"):
            call()
    part.set_some([7], "mass", [1])
    assert part.render() == {0: "a", 1: "b", 2: "c"}


def test_the_call_that_is_under_way_is_named():
    looks: list[Any] = []

    def make(env_index: int) -> gymnasium.Env:
        env = Failing(after=1000)
        step = env.step

        def look(action: int) -> Any:
            work = part.at_work()
            looks.append((work.key, work.describe()))
            return step(action)

        env.step = look
        return env

    part = loop(make)
    part.reset(1)
    for _ in range(2):
        step(part)
    assert part.at_work() is None
    assert len({key for key, _ in looks}) == 6
    assert [words.partition(", ")[0] for _, words in looks] == [f"step {n}: env {i}" for n in (0, 1) for i in (3, 4, 5)]


def test_natively_vectorized_envs_are_named_all_together():
    part, _ = native()
    work = part.at_work()
    assert work.describe() == "step 0: envs 0 to 2"
    step(part)
    assert part.at_work().key != work.key and part.at_work().describe() == "step 1: envs 0 to 2"
