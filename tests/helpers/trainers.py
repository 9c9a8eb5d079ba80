"""What tests have trainers do, on all ranks of a job: `Job.train` runs one of these functions there."""

import pickle
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import trainer_mistakes
from block_policies import Sampling
from diaries import keep_diary
from gymnasium.vector import VectorEnv
from oracle import Rows, facts_of, record, resets_of
from policies import by_look
from vector_wrappers import WRAPPERS, without_clock

import mpi_rollout
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import Option, RankError
from mpi_rollout.exchange.world import claimed_rank
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.host import ProcessorTime
from mpi_rollout.process.paths import load_callable
from mpi_rollout.train.vector_env import MPIVectorEnv


def main(function: str) -> None:
    """Call a function of this module with the arguments that wait in a file; leave there what the root returns."""
    returned = globals()[function](*pickle.loads(Path("arguments").read_bytes()))
    if claimed_rank() == 0:
        Path("returned").write_bytes(pickle.dumps(returned))


def connect(env: str, num_envs: int, **options: Any) -> Any:
    """`mpi_rollout.connect`, with `module:callable` for what is not registered."""
    is_registered = not env.startswith(("envs:", "failing_envs:", "seeded_faults:", "mpi_envs:"))
    return mpi_rollout.connect(env if is_registered else load_callable(env, Option("env")), num_envs, **options)


def each_of(ways: Iterable[tuple[str, int, dict[str, Any]]], use: Callable[[MPIVectorEnv], Any]) -> list[Any]:
    """What using the envs gives on the root, for one connection after the other: env, num_envs, options."""
    found = []
    for env, num_envs, options in ways:
        with connect(env, num_envs, **options) as envs:
            if envs is not None:
                found.append(use(envs))
    return found


def agents(ways: Iterable[tuple[str, dict[str, Any], int]]) -> list[dict[str, np.ndarray]]:
    """What trainers of envs with agents are given: the env, options of `connect`, steps of a fragment."""
    import agents_envs

    given = []
    for env, options, fragment in ways:
        with mpi_rollout.connect(getattr(agents_envs, env), 4, **options) as envs:
            if envs is not None:
                given.append(agents_envs.diary(envs, 24, 3, fragment))
    return given


def agent_rows(num_steps: int) -> tuple[list[Any], list[Any], tuple[float, float]]:
    """What SB3 is given of agents as rows in some steps; the mean reward before and after a policy has learned.

    First of agents that act until they leave, then of some that pause.
    """
    import agents_envs

    with mpi_rollout.connect(agents_envs.even, 3, agents="axis", autoreset_mode="same_step") as envs:
        given = agents_envs.steps_of_rows(envs, num_steps) if envs is not None else []
    with mpi_rollout.connect(agents_envs.Steady, 3, agents="axis", autoreset_mode="same_step") as envs:
        pausing = agents_envs.steps_of_rows(envs, num_steps) if envs is not None else []
    options = {"agents": "axis", "autoreset_mode": "same_step"}
    with mpi_rollout.connect(agents_envs.matching, 4, **options) as envs:
        means = agents_envs.learned(envs) if envs is not None else (0.0, 0.0)
    return given, pausing, means


def runs(commands: Sequence[Sequence[str]], num_rows: int | None = None) -> list[int]:
    """Run the program with these arguments, one after the other, in blocks of `num_rows` steps if told; exit codes.

    Those that measure the limit do it for less than the six seconds that it takes else.
    """
    from mpi_rollout.cli import main
    from mpi_rollout.storage import schema

    if num_rows is not None:
        schema.rows_per_block = lambda nbytes, num_steps: num_rows
    quick = [("--limit-s", "0.01") if "--measure-limit" in command else () for command in commands]
    return [main([*command, *options, "--progress", "none"]) for command, options in zip(commands, quick, strict=True)]


def amid_sharing(function: str, *arguments: Any) -> tuple[Any, int]:
    """Call another function of this module on ranks that have their cores to themselves and share them in turn.

    Returns
    -------
    What it returned, and how often this rank went over to other messages
    """
    from mpi_rollout.exchange import transports, waiting
    from mpi_rollout.ranks import set_up

    waiting.WINDOW_S = waiting.FIRST_REST_S = waiting.LONGEST_REST_S = 0.0
    waiting.processor_time = partial(next, processor_times(claimed_rank()))
    set_up.way_to_wait = lambda comm: "adapt"
    change, changes = transports.SwitchingTransport._change, []
    transports.SwitchingTransport._change = lambda self: (changes.append(1), change(self))
    return globals()[function](*arguments), len(changes)


def processor_times(first: int) -> Iterator[ProcessorTime]:
    """Of a thread that has a core to itself for three readings, and half of one for the next three."""
    delayed_s = 0
    for number in count(first):
        delayed_s += number // 3 % 2
        yield ProcessorTime(number, delayed_s)


def recordings(cases: Sequence[tuple[str, int, int, dict[str, Any]]]) -> list[Any]:
    """What `oracle.record` gives for one connection after the other: env, num_envs, num_steps, options."""
    found = []
    for env, num_envs, num_steps, options in cases:
        found += each_of([(env, num_envs, options)], partial(record, num_steps=num_steps))
    return found


def walk_in_parts(envs: MPIVectorEnv, num_steps: int) -> tuple[list[Any], list[np.ndarray], list[bool]]:
    """`oracle.walk`, each part of the envs sent on when it comes.

    Returns
    -------
    What each env gave, what `recv` gave for `envs_slice`, and of each part whether its observations were contiguous.
    """
    rows, left, slices, is_contiguous = Rows(envs.num_envs), np.full(envs.num_envs, num_steps), [], []
    observations, _ = envs.reset(seed=5)
    envs.send(by_look(observations))
    while left.any():
        *outputs, where = envs.recv()
        rows.take(outputs, where)
        slices.append(where)
        is_contiguous.append(outputs[0].flags.c_contiguous)
        left[where] -= 1
        if (more := left[where] > 0).any():  # Of a part, some may be through.
            envs.send(by_look(outputs[0][more]), where[more])
    return rows.of_env, slices, is_contiguous


def walks(cases: Sequence[tuple[str, int, int, dict[str, Any]]]) -> list[Any]:
    """`walk_in_parts` for one connection after the other: env, num_envs, num_steps, options."""
    found = []
    for env, num_envs, num_steps, options in cases:
        found += each_of([(env, num_envs, options)], partial(walk_in_parts, num_steps=num_steps))
    return found


def diaries(cases: Sequence[tuple[str, int, str, dict[str, Any]]], num_rows: int) -> list[Any]:
    """What a trainer saw in each case, whose recording is in a file with blocks of so many rows."""
    from mpi_rollout.storage import schema

    schema.rows_per_block = lambda nbytes, num_steps: num_rows
    return [keep_diary(*case) for case in cases]


def views_that_live(num_envs: int, num_recvs: int, ways: Sequence[dict[str, Any]]) -> list[tuple[list[bool], ...]]:
    """With views: is each env's observation the same when the next one comes, and does the one after overwrite it?"""
    cases = [("envs:Counting", num_envs, {"copy": False, **options}) for options in ways]
    return each_of(cases, lambda envs: _watch_views(envs, num_recvs))


def _watch_views(envs: MPIVectorEnv, num_recvs: int) -> tuple[list[bool], list[bool]]:
    is_alive, is_reused = [], []
    observations, _ = envs.reset(seed=5)
    kept: list[list[tuple[np.ndarray, bytes]]] = [[(row, row.tobytes())] for row in observations]
    envs.send(by_look(observations))
    for _ in range(num_recvs):
        observations, *_, where = envs.recv()
        for index, row in zip(where, observations, strict=True):
            view, content = kept[index][-1]
            is_alive.append(view.tobytes() == content and not np.shares_memory(view, row))
            is_reused += [np.shares_memory(before, row) for before, _ in kept[index][-2:-1]]
            kept[index].append((row, row.tobytes()))
        envs.send(by_look(observations), where)
    return is_alive, is_reused


def past_a_slow_rank(slow: int, least: int, ways: Sequence[dict[str, Any]]) -> list[tuple[list[int], int]]:
    """The envs that come while one rank is in a long step, and in how many more `recv`s its own do.

    The long step ends only when all others have come `least` times: should they wait for it, the job never ends.
    """
    found = []
    for options in ways:
        with connect("envs:Gated", 8, env_kwargs={"rank": slow}, **options) as envs:
            if envs is not None:
                whole = Division(8, 4, options.get("root_envs"), first_ready=True).whole
                found.append(_pass(envs, 8 - len(whole.envs_of(slow)), least))
        if envs is not None:
            Path("go").unlink()
    return found


def _pass(envs: MPIVectorEnv, num_others: int, least: int) -> tuple[list[int], int]:
    came: list[int] = []
    counts: Counter[int] = Counter()
    num_more = 0
    observations, _ = envs.reset(seed=5)
    envs.send(by_look(observations))
    while len(counts) < num_others or min(counts.values()) < least:
        time.sleep(0.001)  # A policy is at work: quick ranks are always ready.
        observations, *_, where = envs.recv()
        came += where.tolist()
        counts.update(where.tolist())
        envs.send(by_look(observations), where)
    Path("go").touch()
    while set(where) <= set(came):
        observations, *_, where = envs.recv()
        envs.send(by_look(observations), where)
        num_more += 1
    return came, num_more


def facts(ways: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`oracle.facts_of` for some ways to connect."""
    kwargs = {"render_mode": "ansi"}
    return each_of([("envs:Agreeing", 7, {"env_kwargs": kwargs, **options}) for options in ways], facts_of)


def resets(ways: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """`oracle.resets_of` for some ways to connect."""
    return each_of([("envs:Agreeing", 7, options) for options in ways], resets_of)


def wrapped(cases: Sequence[tuple[str, dict[str, Any]]], num_envs: int, num_steps: int) -> list[list[Any]]:
    """`oracle.record` of envs in a wrapper of `vector_wrappers`: its name, and how to connect."""
    found = []
    for name, options in cases:
        env, wrap = WRAPPERS[name]
        with connect(env, num_envs, env_kwargs={"max_episode_steps": 7}, **options) as envs, without_clock():
            if envs is not None:
                found.append(record(wrap(envs), num_steps))
    return found


def errors(cases: Sequence[tuple[str, str, dict[str, Any]]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What mistakes raise, before the first reset and after it: kind of `trainer_mistakes`, env, and how to connect."""
    found = []
    for kind, env, options in cases:
        with connect(env, 12, **options) as envs:
            if envs is not None:
                found.append((trainer_mistakes.before_reset(envs), dict(trainer_mistakes.made(envs, kind))))
    return found


def refusals(cases: Sequence[tuple[str, Any, dict[str, Any]]]) -> list[tuple[str, str]]:
    """Type and text of what `connect` raises on the root; other ranks must leave, and are kept from it here."""
    found = []
    for env, num_envs, options in cases:
        try:
            with connect(env, num_envs, **options) as envs:
                found.append(("nothing", repr(envs)))
        except SystemExit as error:
            assert claimed_rank() > 0 and error.code, error.code
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


def disagreements(cases: Sequence[Sequence[tuple[str, int, dict[str, Any]]]]) -> list[tuple[str, str]]:
    """The same for arguments that each rank has of its own."""
    return refusals([case[claimed_rank()] for case in cases])


def past_failures(ways: Sequence[dict[str, Any]]) -> list[list[tuple[str, str, list[Any]]]]:
    """Of each env that fails, in a step and in a reset, for some ways to connect: what the failure raised, what a step
    raised after it, and `oracle.record` of a new beginning.
    """
    places = [(index, where) for index in range(7) for where in ("step", "reset")]
    cases = [("envs:Stumbling", 7, options) for options in ways]
    return each_of(cases, lambda envs: [_past_failure(envs, *place) for place in places])


def _past_failure(envs: MPIVectorEnv, index: int, where: str) -> tuple[str, str, list[Any]]:
    envs.reset(seed=0)
    envs.set_attr("fails", [where if i == index else "" for i in range(7)])
    raised = []
    actions = np.zeros(7, int)
    for name, *arguments in (("reset",) if where == "reset" else ("step", actions)), ("step", actions), ("recv",):
        try:
            getattr(envs, name)(*arguments)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    assert raised[1] == raised[2]
    return raised[0], raised[1], record(envs, 12)


def past_interrupts(ways: Sequence[dict[str, Any]], num_interrupts: int = 24) -> list[list[Any]]:
    """`oracle.record` after each of some interrupts, wherever the trainer then is: in a call of the envs or outside."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    cases = [("CartPole-v1", 7, options) for options in ways]
    return each_of(cases, lambda envs: [_past_interrupt(envs, number) for number in range(num_interrupts)])


def _past_interrupt(envs: MPIVectorEnv, number: int) -> Any:
    """Interrupt what uses the envs by `step`, or by `send` and `recv`."""
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3 + 7e-5 * number)
        envs.reset()
        while number % 2:
            envs.step(np.zeros(7, int))
        while True:
            envs.send(np.zeros(7, int))
            num_left = 7
            while num_left:
                num_left -= len(envs.recv()[-1])
    except KeyboardInterrupt:
        return record(envs, 3)


def calls_of_all_ranks() -> list[Any]:
    """What calls by name of envs on two ranks each give: each adds up what all ranks have."""
    found = []
    for ranks_per_env in (1, 2):
        with connect("mpi_envs:Cells", 4, ranks_per_env=ranks_per_env, record=f"{ranks_per_env}.h5") as envs:
            if envs is not None:
                envs.reset(seed=5)
                envs.set_attr("scale", [2, 3, 4, 5])
                observations = envs.step(np.zeros(4, np.int64))[0]
                found.append([envs.call("total"), envs.get_attr("num_steps"), envs.render(), observations])
    return found


def past_failures_of_a_rank() -> list[Any]:
    """What a trainer is told when one rank of an env fails in its step, and what it gets after a reset."""
    found = []
    kwargs = {"how": "raise", "late": True, "after": 1}
    with connect("mpi_envs:Cells", 3, ranks_per_env=2, env_kwargs=kwargs) as envs:
        for _ in range(2 if envs is not None else 0):
            found.append(envs.reset(seed=5)[0])
            envs.step(np.zeros(3, np.int64))
            try:
                envs.step(np.zeros(3, np.int64))
            except ValueError as error:
                found.append(str(error))
    return found


def past_failing_envs(infos: Any) -> list[tuple[list[int], list[int]]]:
    """Which envs were truncated in each step, and of which the infos told why."""
    found = []
    with connect("seeded_faults:Moody", 5, max_env_restarts=1000, infos=infos) as envs:
        if envs is not None:
            envs.reset(seed=3)
            for _ in range(100):
                *_, truncations, told = envs.step(np.zeros(5, np.int64))
                why = told.get("env_error", np.full(5, None, object))
                found.append((np.flatnonzero(truncations).tolist(), [i for i in range(5) if why[i] is not None]))
                assert not told or np.array_equal(told.get("_env_error", truncations), truncations)
    return found


def beside_dummy(names: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """`side_by_side.checked`."""
    from side_by_side import checked

    return checked(names)


def direct(cases: Sequence[tuple[str, str, dict[str, Any]]]) -> list[str]:
    """What code prints that has `envs`, seven of them, and `draw` for actions: code, env, and how to connect."""
    found = []
    for code, env, options in cases:
        with connect(env, 7, **options) as envs:
            if envs is not None:
                found.append(_printed(code, envs))
    return found


def _printed(code: str, envs: MPIVectorEnv) -> str:
    import pytest

    draw = RandomPolicy(envs.single_action_space, envs.num_envs, 0)
    names = {"envs": envs, "draw": draw, "np": np, "pytest": pytest, "RankError": RankError, "VectorEnv": VectorEnv}
    with redirect_stdout(StringIO()) as out:
        try:
            exec(code, names)
        except Exception:  # The ranks are to go on to the next connection.
            traceback.print_exc(file=out)
    return out.getvalue()


def collect_with_new_parameters(num_envs: int) -> Any:
    """Three fragments of a policy on the ranks, whose parameters are halved after each."""
    batches = []
    with mpi_rollout.connect("CartPole-v1", num_envs, policy="block_policies:sampling.make_policy") as envs:
        if envs is None:
            return None
        parameters = Sampling().parameters
        envs.reset(seed=1)
        for _ in range(3):
            batches.append(envs.collect(9))
            parameters = {name: value * np.float32(0.5) for name, value in parameters.items()}
            envs.set_policy(parameters)
    return batches


def collect_as_ranks_get_ready(num_envs: int, num_batches: int, options: dict[str, Any]) -> Any:
    """Fragments in the order in which they came, while parameters are halved before each of them is sent."""
    batches = []
    connection = mpi_rollout.connect(
        "CartPole-v1", num_envs, policy="block_policies:sampling.make_policy", batch_size=1, **options
    )
    with connection as envs:
        if envs is None:
            return None
        parameters = Sampling().parameters
        envs.reset(seed=1)
        envs.collect_async(9)
        for _ in range(num_batches):
            batches.append(envs.collect_some())
            parameters = {name: value * np.float32(0.5) for name, value in parameters.items()}
            envs.set_policy(parameters)
            envs.collect_async(9, envs_slice=batches[-1]["envs_slice"])
    return batches


def set_parameters_that_no_rank_can_load(num_envs: int) -> Any:
    """What is said of it, by first ready and by lockstep; the envs can be reset and used again."""
    told = []
    for options in ({}, {"batch_size": 1}):
        with mpi_rollout.connect(
            "CartPole-v1", num_envs, policy="block_policies:unloadable.make_policy", **options
        ) as envs:
            if envs is None:
                continue
            envs.reset(seed=1)
            envs.collect(3)
            envs.set_policy(Sampling().parameters)
            try:
                envs.collect(3)
            except mpi_rollout.RankError as error:
                told.append(str(error))
            envs.reset(seed=1)
            envs.collect(3, np.zeros((3, num_envs), np.int64))
            try:  # It has other parameters than those that it was sent.
                envs.collect(3)
            except mpi_rollout.RankError as error:
                assert "could not load the last parameters; send others by set_policy" in str(error)
                told.append(told[-1])
    assert len(told) in (0, 4)
    assert all("policy: load: ZeroDivisionError: cannot" in text for text in told), told
    return told[-1] if told else None
