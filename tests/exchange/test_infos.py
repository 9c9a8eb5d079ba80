"""Infos of many envs are one dict, whoever's they are; or named ones only, in columns; or none."""

import pickle
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from envs import Agreeing
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from jobs import Job, once
from oracle import differences, record

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.exchange.exchange import pack_infos
from mpi_rollout.exchange.infos import (
    EnvInfos,
    add_columns,
    add_info,
    info_leaves,
    infos_of_each,
    merge_infos,
    names_of,
    write_columns,
)

pytestmark = pytest.mark.any_mpi

# Dicts of neighbouring envs made into one.

KINDS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda draw: draw.randrange(1, 99),
    "float": lambda draw: draw.random(),
    "bool": lambda draw: True,
    "float32": lambda draw: np.float32(draw.random()),
    "int8": lambda draw: np.int8(draw.randrange(1, 99)),
    "text": lambda draw: f"word {draw.random()}",
    "nothing": lambda draw: None,
    "list": lambda draw: [draw.random()] * draw.randrange(3),
    "vector": lambda draw: np.full(3, draw.random()),
    "matrix": lambda draw: np.full((2, 2), draw.randrange(9), np.int16),
    "no size": lambda draw: np.zeros((0, 4)),
    "strings": lambda draw: np.array(["a", f"{draw.randrange(99)}"], "<U4"),
}


def random_info(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """What one env says: some of all kinds, and dicts of the same."""
    info = {name: make(draw) for name, make in KINDS.items() if draw.random() < 0.4}
    if depth and draw.random() < 0.7:
        info |= {name: random_info(draw, depth - 1) for name in ("deep", "low") if draw.random() < 0.6}
    return info


def added(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """What Gymnasium makes of the infos of some envs, one after the other."""
    envs, gathered = VectorEnv(), {}
    envs.num_envs = len(infos)
    for index, info in enumerate(infos):
        gathered = envs._add_info(gathered, info, index)
    return gathered


def merged(infos: list[dict[str, Any]], edges: list[int]) -> dict[str, Any]:
    """The same by way of what neighbouring envs tell; those that are silent are left out, as ranks do."""
    parts = [(slice(start, stop), told(infos[start:stop])) for start, stop in pairwise([0, *edges, len(infos)])]
    return merge_infos(len(infos), [(rows, part) for rows, part in parts if part])


def told(infos: list[dict[str, Any]]) -> EnvInfos:
    """What a rank makes of the infos of its envs."""
    gathered: EnvInfos = []
    for index, info in enumerate(infos):
        add_info(gathered, info, index)
    return gathered


EDGES = [[], [2, 4], [1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("edges", EDGES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_merged_infos_are_those_of_one_vector_env(seed: int, edges: list[int]):
    draw = random.Random(seed)
    infos = [random_info(draw) if draw.random() < 0.8 else {} for _ in range(7)]
    assert differences(merged(infos, edges), added(infos)) == []


@pytest.mark.parametrize("edges", EDGES, ids=str)
@pytest.mark.parametrize(
    "values",
    [[1, 0.5, 0.25, 1, 0.5, 1, 0.5], [0.5, 1, 0.25, 1, 0.5, 1, 0.125], [0.5, True, 3, 0.5, np.int8(4), 0.25, 1]],
    ids=str,
)
def test_of_numbers_of_several_types_the_first_envs_decides_for_all(values: list[Any], edges: list[int]):
    """As in FrozenLake-v1: its `prob` is the int 1 after a reset, and the float 1/3 after a step."""
    infos = [{"prob": value, "deep": {"prob": value}} for value in values]
    assert differences(merged(infos, edges), added(infos)) == []


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_a_number_after_a_dict_is_where_gymnasium_puts_it(edges: list[int]):
    infos = [{"x": value} for value in [{"a": 1}, {"a": 2}, 5, {"b": 3}, None, {"a": 4}, "word"]]
    assert differences(merged(infos, edges), added(infos)) == []


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_a_dict_after_a_number_is_refused_as_gymnasium_fails_on_whichever_ranks_they_are(edges: list[int]):
    with pytest.raises(DataError, match=r"info 'x' is a dict in one env and ndarray in one before it, which Gymnasium"):
        merged([{"x": value} for value in [2] * 6 + [{"a": 1}]], edges)


VALUES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, np.nan, 2**63, True, None, "word", np.int8(5), np.float32(0.1), np.uint64(2**63)]),
    st.sampled_from([[1], [1, 2], np.ones(3), np.zeros(2, int), np.ones((2, 3)), np.array("word"), np.zeros(0)]),
)
SAID = st.dictionaries(st.sampled_from("ab"), VALUES | st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2))


@given(st.lists(SAID, min_size=7, max_size=7), st.sampled_from(EDGES))
def test_any_infos_are_merged_as_gymnasium_merges_them_or_refused_where_it_fails(infos: list[Any], edges: list[int]):
    try:
        expected = added(infos)
    except (AttributeError, TypeError, ValueError, OverflowError):
        with pytest.raises(DataError):
            merged(infos, edges)
        return
    assert differences(merged(infos, edges), expected) == []


@given(st.lists(SAID, min_size=7, max_size=7), st.sampled_from(EDGES))
def test_any_infos_of_each_env_are_its_own_as_it_gave_them(infos: list[Any], edges: list[int]):
    parts = [(slice(start, stop), told(infos[start:stop])) for start, stop in pairwise([0, *edges, len(infos)])]
    of_each = infos_of_each(7, parts)
    assert differences(of_each, infos) == []
    for own, given_info in zip(of_each, infos, strict=True):
        for name, value in own.items():
            assert not isinstance(value, dict | list | np.ndarray) or value is not given_info[name]


# Which infos are wanted.


def test_named_infos_become_columns_also_below_the_final_info_where_there_is_one():
    wanted = {"lives": int, "deep/position": (np.float32, (2, 3))}
    found = [(leaf.keys, leaf.dtype.name, leaf.shape) for leaf in info_leaves(wanted, has_final_infos=True)]
    plain = [(("lives",), "int64", ()), (("deep", "position"), "float32", (2, 3))]
    assert found == plain + [(("final_info", *keys), *rest) for keys, *rest in plain]
    assert len(info_leaves(wanted)) == 2 and info_leaves("all") == info_leaves("none") == ()


def test_envs_are_asked_for_the_outermost_names():
    assert names_of({"lives": int, "deep/position": float, "deep/odd": int}) == ("lives", "deep")
    assert names_of("all") is True and names_of("none") is False


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ("some", r'infos must be "none", "all" or names with dtypes such as {"lives": int}, got \'some\''),
        ({"lives": "many"}, r"infos: 'lives' must have a dtype such as int, float or uint8, got 'many'; infos='all'"),
        ({"lives": str}, r"infos: 'lives' must have a dtype of numbers, such as int, float or uint8, got <U0"),
        ({"lives": object}, r"must have a dtype of numbers, .* got object"),
        ({"lives": (int, 3.0)}, r"infos: 'lives' must have sizes of at least 1, such as \[float, 3\], got"),
        ({"lives": (int, "3x")}, r"infos: 'lives' must have sizes of at least 1"),
        ({"lives": None}, r"infos: 'lives' must have a dtype such as int, float or uint8, got None"),
        ({3: int}, r"infos: 3 must be a name with a dtype"),
    ],
    ids=str,
)
def test_infos_that_cannot_be_wanted_are_refused(infos: Any, message: str):
    with pytest.raises(UsageError, match=message):
        info_leaves(infos)


# What a trainer gets.

NUM_ENVS, NUM_STEPS = 7, 20
MODES = ("next_step", "same_step")
WANTED: dict[str, Any] = {
    "mass": float,
    "odd": int,  # In odd steps only.
    "flag": bool,
    "single": np.float64,  # Of float32.
    "position": (np.float32, (2, 3)),
    "deep/odd": np.int16,
    "deep/down/row": (int, (3,)),
    "third/of": int,  # In some envs only.
    "absent": float,
}
WAYS: dict[str, dict[str, Any]] = {"lockstep": {}, "two groups": {"num_groups": 2}, "first ready": {"batch_size": 1}}


def leaf_of(infos: dict[str, Any], path: str) -> tuple[Any, np.ndarray] | None:
    """Values and mask of one info in what Gymnasium gives; None where no env has it."""
    has = np.ones(NUM_ENVS, bool)
    for key in path.split("/"):
        if key not in infos:
            return None
        has, infos = has & infos[f"_{key}"], infos[key]
    return (infos, has) if has.any() else None


def paths_of(infos: dict[str, Any], above: str = "") -> set[str]:
    """The places of all arrays but masks."""
    found = set()
    for key, value in infos.items():
        if not key.startswith("_"):
            found |= paths_of(value, f"{above}{key}/") if isinstance(value, dict) else {above + key}
    return found


@cache
def everything(mode: str) -> list[Any]:
    return record(SyncVectorEnv([Agreeing] * NUM_ENVS, autoreset_mode=AutoresetMode[mode.upper()]), NUM_STEPS)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[tuple[str, str, str], Any]]:
    """What a job on some ranks gives with named infos and with none, for each mode and way."""

    @once
    def of(num_ranks: int) -> dict[tuple[str, str, str], Any]:
        choices = {"named": WANTED, "none": "none"}
        keys = [(choice, mode, way) for choice in choices for mode in MODES for way in WAYS]
        cases = [
            ("envs:Agreeing", NUM_ENVS, NUM_STEPS, {"infos": choices[choice], "autoreset_mode": mode, **WAYS[way]})
            for choice, mode, way in keys
        ]
        found = Job(tmp_path_factory.mktemp("infos")).train(num_ranks, "recordings", cases)
        return dict(zip(keys, found, strict=True))

    return of


@pytest.mark.mpi(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_named_infos_are_those_that_gymnasium_gives(recorded, num_ranks: int, mode: str, way: str):
    """With the dtype that was asked for, and where an env does not have them, 0."""
    wanted = WANTED | {f"final_info/{path}": kind for path, kind in WANTED.items() if mode == "same_step"}
    num_compared = 0
    for outputs, expected in zip(recorded(num_ranks)["named", mode, way], everything(mode), strict=True):
        assert differences(outputs[:-1], expected[:-1]) == []
        leaves = {path: leaf_of(expected[-1], path) for path in wanted}
        assert paths_of(outputs[-1]) - {"final_obs"} == {path for path in wanted if leaves[path]}
        for path in paths_of(outputs[-1]) - {"final_obs"}:
            (values, has), (theirs, has_theirs) = leaf_of(outputs[-1], path), leaves[path]
            assert has.tolist() == has_theirs.tolist(), path
            assert values.dtype == np.dtype(wanted[path][0] if isinstance(wanted[path], tuple) else wanted[path])
            assert (values[has] == theirs[has]).all() and not values[~has].any(), path
            num_compared += 1
    assert num_compared > 6 * NUM_STEPS


@pytest.mark.mpi(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_without_infos_all_else_is_the_same(recorded, num_ranks: int, mode: str, way: str):
    """Final observations stay: who bootstraps from an episode's end cannot do without."""
    for outputs, expected in zip(recorded(num_ranks)["none", mode, way], everything(mode), strict=True):
        finals = {name: value for name, value in expected[-1].items() if name in ("final_obs", "_final_obs")}
        assert differences(outputs, (*expected[:-1], finals)) == []


@pytest.mark.parametrize(
    ("info", "wanted"),
    [
        ({"lock": threading.Lock()}, {"lock": "f8"}),
        ({"text": "word"}, {"text": "f8"}),
        ({"position": np.zeros((2, 3))}, {"position": ("f8", (2,))}),
        ({"mass": 1.5}, {"mass": ("f8", (2,))}),
        ({"mass": 1.5}, {"mass/lost": "f8"}),
        ({"deep": {"odd": 1}}, {"deep": "f8"}),
    ],
    ids=["object", "text", "more axes", "no axis", "no dict", "a dict"],
)
def test_infos_that_are_not_as_they_were_wanted_are_an_error_that_names_them(info: dict, wanted: dict):
    [leaf] = info_leaves(wanted)
    [name] = info
    with pytest.raises(DataError, match=f"^env 4: its info {name!r} should be|^infos: '{name}/"):
        write_columns(told([{}, info]), leaf, np.zeros((2, *leaf.shape)), np.zeros(2, bool), first_env_index=3)


UNREADABLE = """
import gymnasium, numpy as np
import mpi_rollout
from mpi_rollout.errors import DataError
class Diverged(Exception):
    def __init__(self, place, step):  # So pickle can write it, and not read it again.
        super().__init__(f"diverged at {place}")
class Telling(gymnasium.Wrapper):
    says, number = False, 0
    def __init__(self, env_index):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.env_index = env_index
    def step(self, action):
        self.number += 1
        info = {"number": 100 * self.number + self.env_index} | ({"error": Diverged(1, 2)} if self.says else {})
        return *self.env.step(action)[:4], info
for groups in 1, 2:
    with mpi_rollout.connect(Telling, 6, num_groups=groups) as envs:
        if envs is not None:
            envs.reset(seed=1)
            envs.set_attr("says", [False, False, True, False, False, True])
            envs.send(np.zeros(6, int))
            try:
                for _ in range(groups): envs.recv()
            except DataError as error:
                print(str(error).split(";")[0])
            envs.reset(seed=1)
            envs.set_attr("says", False)
            envs.set_attr("number", 8)
            envs.send(np.zeros(6, int))
            print([number for _ in range(groups) for number in envs.recv()[4]["number"].tolist()])
"""


@pytest.mark.mpi(3)
def test_infos_that_the_root_cannot_read_are_an_error_and_the_next_ones_are_their_own(job: Job, num_ranks: int):
    result = job.script(num_ranks, UNREADABLE)
    assert result.code == 0, result.err
    told, numbers = result.out.splitlines()[::2], result.out.splitlines()[1::2]
    for words, envs in zip(told, ("2 to 3", "2 to 2"), strict=True):
        missing = "cannot be read on rank 0: TypeError: Diverged.__init__() missing"
        assert words.startswith(f"envs {envs}: their infos {missing}")
    assert numbers == [str([900, 901, 902, 903, 904, 905])] * 2


UNLIKE = """
import gymnasium, numpy as np
import mpi_rollout
class Telling(gymnasium.Wrapper):
    says = None
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
    def step(self, action):
        return *self.env.step(action)[:4], {"kind": self.says}
with mpi_rollout.connect(Telling, 6) as envs:
    if envs is not None:
        envs.reset(seed=1)
        envs.set_attr("says", [1, 2, 3, 4, 5, {"a": 6}])
        for _ in range(2):
            try:
                envs.step(np.zeros(6, int))
            except Exception as error:
                print(type(error).__name__, str(error)[:24])
        envs.reset(seed=1)
        envs.set_attr("says", 7)
        print(envs.step(np.zeros(6, int))[4]["kind"].tolist())
"""


@pytest.mark.mpi(1, 2)
def test_infos_that_do_not_go_together_are_a_failure_after_which_a_reset_begins_anew(job: Job, num_ranks: int):
    result = job.script(num_ranks, UNLIKE)
    assert result.code == 0, result.err
    told = ["DataError info 'kind' is a dict in", "ResetNeeded an env failed, or was in"]
    assert result.out.splitlines() == [*told, str([7] * 6)]


LEAF = Leaf(("deep", "position"), np.dtype(np.float32), (2,))


def test_an_info_of_some_envs_is_written_into_its_rows_and_marked():
    values, mask = np.full((3, 2), 7, np.float32), np.ones(3, bool)
    given = np.array([[1, 2], [0, 0], [3, 4]])
    write_columns({"deep": {"position": given, "_position": np.array([True, False, True])}}, LEAF, values, mask)
    assert values.tolist() == [[1, 2], [0, 0], [3, 4]] and mask.tolist() == [True, False, True]
    write_columns({}, LEAF, values, mask)
    assert values.tolist() == [[0, 0]] * 3 and not mask.any()


def test_an_info_in_what_is_no_dict_is_refused_with_the_way_out():
    with pytest.raises(DataError, match=r"^infos: 'deep/position': 'deep' is not a dict in .*; name it otherwise$"):
        write_columns(
            add_info([], {"deep": 3}, 0), LEAF, np.zeros((3, 2)), np.zeros(3, bool), way_out="name it otherwise"
        )


def test_integers_of_different_types_are_whole_numbers_beside_each_other():
    values, mask = np.zeros(3, np.int64), np.zeros(3, bool)
    given: EnvInfos = []
    for row, number in enumerate((np.uint64(2**62 + 1), np.int64(-1), True)):
        add_info(given, {"count": number}, row)
    write_columns(given, Leaf(("count",), np.dtype(np.int64), ()), values, mask)
    assert values.tolist() == [2**62 + 1, -1, 1] and mask.all()


def test_named_infos_of_one_dict_have_its_envs_together():
    infos: dict[str, Any] = {}
    first, second, third = (np.array(mask) for mask in ([True, False, False], [False, True, False], [False] * 3))
    add_columns(infos, Leaf(("episode", "r"), np.dtype(float), ()), np.array([1.0, 9.0, 9.0]), first)
    add_columns(infos, Leaf(("episode", "l"), np.dtype(int), ()), np.array([9, 2, 9]), second)
    add_columns(infos, Leaf(("lives",), np.dtype(int), ()), np.array([9, 9, 9]), third)
    assert infos.keys() == {"episode", "_episode"} and infos["_episode"].tolist() == [True, True, False]
    assert infos["episode"]["r"].tolist() == [1, 0, 0] and infos["episode"]["_l"].tolist() == second.tolist()


def test_infos_that_cannot_be_sent_are_refused_by_name():
    with pytest.raises(DataError, match=r"^info 'lock' cannot be sent: TypeError: cannot pickle .*infos=\"none\"\)$"):
        pack_infos([(0, {"step": 3, "lock": threading.Lock()})])


def test_a_dict_whose_class_cannot_be_pickled_is_sent_as_a_dict():
    info = {"parts": defaultdict(lambda: 0, a=1.5)}
    assert pickle.loads(pack_infos([(2, info)])) == [(2, {"parts": {"a": 1.5}})]
