"""Whatever a trainer does wrong with its envs is told at once, with the way out, and the envs go on."""

from collections.abc import Callable
from typing import Any

import pytest
from jobs import Job, once
from trainer_mistakes import KINDS

pytestmark = pytest.mark.any_mpi

WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "checked": {"actions": "check"},
    "checked, two groups": {"actions": "check", "num_groups": 2},
    "two groups": {"num_groups": 2},
    "first ready": {"batch_size": 1},
    "disabled": {"autoreset_mode": "disabled"},
    "disabled, two groups": {"autoreset_mode": "disabled", "num_groups": 2},
}
JOBS = {  # The kinds of mistakes, and the ways to connect in which they are made.
    "actions": ["checked", "checked, two groups"],
    "order": ["lockstep", "two groups", "first ready"],
    "arguments": ["lockstep", "first ready"],
    "what cannot be sent": ["lockstep", "two groups", "first ready"],
    "slices": ["two groups", "first ready"],
    "masks": ["disabled", "disabled, two groups"],
}
PENDING, STEPPING = "AlreadyPendingCallError", "while envs are stepping; call recv() until all have come"
WHERE = "envs_slice must be what recv returned, got "
WRONG = "the action must be float32 of shape (12, 1), got"
TOLD: dict[str, dict[str, tuple[str, str]]] = {
    "actions": {
        "too few": ("ActionError", f"{WRONG} float32 of shape (11, 1); give one action for each of 12 envs"),
        "too many": ("ActionError", f"{WRONG} float32 of shape (13, 1)"),
        "flat": ("ActionError", f"{WRONG} float32 of shape (12,); give actions[:, None]"),
        "complex": ("ActionError", f"{WRONG} complex128 of shape (12, 1); give actions.real.astype(np.float32)"),
        "text": ("ActionError", f"{WRONG} <U4 of shape (12, 1)"),
        "none": ("ActionError", f"{WRONG} None; give the actions as an array"),
        "ragged": ("ActionError", "the action cannot be read: ValueError: "),
        "nan": ("ActionError", "the action for env 7, component [0] must be in -2.0 to 2.0, got nan"),
        "too large": ("ActionError", "the action for env 11, component [0] must be in -2.0 to 2.0, got 2.5"),
        "minus infinity": ("ActionError", "the action for env 0, component [0] must be in -2.0 to 2.0, got -inf"),
    },
    "order": {
        "two sends": (PENDING, "have been sent actions and not been received; call recv() between two sends"),
        "step after send": (PENDING, "have been sent actions and not been received; call recv() between two sends"),
        "reset after send": (PENDING, STEPPING),
        "render after send": (PENDING, STEPPING),
        "call after send": (PENDING, STEPPING),
        "get_attr after send": (PENDING, STEPPING),
        "set_attr after send": (PENDING, STEPPING),
        "np_random after send": (PENDING, STEPPING),
        "recv without send": ("NoAsyncCallError", "recv without send; call send(actions) first"),
        "a recv too many": ("NoAsyncCallError", "recv without send; call send(actions) first"),
    },
    "arguments": {
        "too few seeds": ("ValueError", "one for each of 12 envs, got 2"),
        "too many seeds": ("ValueError", "one for each of 12 envs, got 13"),
        "no seeds": ("ValueError", "one for each of 12 envs, got 0"),
        "too few values": ("ValueError", "one for each of 12 envs, got 2"),
        "unknown attribute": ("RankError", "AttributeError: wrapper TimeLimit has no attribute 'no_such_thing'"),
        "unknown method": ("RankError", "AttributeError: wrapper TimeLimit has no attribute 'no_such_thing'"),
        "a method that takes no arguments": ("RankError", "TypeError: "),
        "a fraction of a seed": ("TypeError", "seed must be a whole number, or a list with one for each of 12"),
        "a seed in words": ("TypeError", "one for each of 12 envs, got 'four'"),
        "a fraction of a seed for one env": ("TypeError", "seed must be a whole number, got 1.5"),
        "a negative seed": ("ValueError", "seed must be at least 0, got -1"),
        "a negative seed for one env": ("ValueError", "seed must be at least 0, got -1"),
        "too few options": ("ValueError", "options must be one for all, or a list with one for each of 12 envs"),
    },
    "what cannot be sent": dict.fromkeys(KINDS["what cannot be sent"], ("", "pickle")),
    "slices": dict.fromkeys(KINDS["slices"], ("ValueError", WHERE)) | {
        "actions for another part": ("ActionError", "must be float32 of shape (6, 1), got float32 of shape (12, 1)"),
        "the same part twice": (PENDING, "envs 0 to 5 have been sent actions and not been received; call recv()"),
        "all while one is under way": (PENDING, "envs 0 to 5 have been sent actions and not been received"),
        "step while one is under way": (PENDING, "envs 6 to 11 have been sent actions and not been received"),
    },
    "masks": {
        "a list": ("TypeError", "must be a numpy array, got list; use np.array(mask, dtype=np.bool_)"),
        "numbers": ("TypeError", "must have dtype bool, got float64; use mask.astype(np.bool_)"),
        "too short": ("ValueError", "must have shape (12,), one for each env, got (11,)"),
        "a column": ("ValueError", "must have shape (12,), one for each env, got (12, 1)"),
        "nobody": ("ValueError", "must have at least one True, got none; leave it out to reset all"),
        "step after an end": ("ValueError", "env 0 and 11 more have ended and autoreset is disabled; reset them with "),
        "send after an end": ("ValueError", "env 0 and 11 more have ended and autoreset is disabled; reset them with "),
        "step after a reset of others": ("ValueError", "env 0 and 10 more have ended and autoreset is disabled; reset"),
        "step after a reset of all others": ("ValueError", "env 0 has ended and autoreset is disabled; reset it with "),
    },
}  # fmt: skip
CASES = [(kind, way, name) for kind, ways in JOBS.items() for way in ways for name in KINDS[kind]]

Made = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """For each way to connect what was raised, by mistake; one job for each kind of them."""

    @once
    def of(kind: str) -> dict[str, Any]:
        options = [{"env_kwargs": {"max_episode_steps": 4}, **WAYS[way]} for way in JOBS[kind]]
        cases = [(kind, "Pendulum-v1", each) for each in options]
        found = Job(tmp_path_factory.mktemp("mistakes")).train(2, "errors", cases)
        return dict(zip(JOBS[kind], found, strict=True))

    return of


@pytest.mark.mpi
@pytest.mark.parametrize(("kind", "way", "name"), CASES)
def test_a_mistake_is_told_with_the_way_out_and_the_envs_go_on_as_ever(made: Made, kind: str, way: str, name: str):
    raised, text, differences = made(kind)[way][1][name]
    expected, words = TOLD[kind][name]
    assert raised == expected or not expected, text
    assert words in text and raised != "nothing"
    assert differences == []


@pytest.mark.mpi
@pytest.mark.parametrize("way", ["lockstep", "two groups", "first ready"])
def test_before_a_reset_there_is_nothing_to_step(made: Made, way: str):
    needed = ("ResetNeeded", "step before reset; call reset() first")
    expected = {"step": needed, "send": needed}
    expected["recv"] = ("NoAsyncCallError", "recv without send; call send(actions) first")
    assert made("order")[way][0] == expected


@pytest.mark.mpi
def test_the_first_reset_is_of_all_envs(made: Made):
    raised, text = made("masks")["disabled"][0]["reset with a mask"]
    assert raised == "ResetNeeded" and text.startswith("the first reset must be of all envs; ")
