"""`connect(..., record=...)`: the file says what the trainer did and saw, and nothing else."""

import errno
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from block_policies import Sampling
from diaries import differences, keep_diary, recorded
from envs import Counting, Image, Stumbling
from gymnasium.error import ResetNeeded
from jobs import Job
from telling_envs import Echoing

import mpi_rollout
from mpi_rollout.cli import main
from mpi_rollout.commands.checking import recover, verify
from mpi_rollout.core.spaces import leaves
from mpi_rollout.errors import RankError, StorageError, UsageError
from mpi_rollout.storage import filters
from mpi_rollout.storage.run_file import RunFile
from mpi_rollout.train import recorder
from mpi_rollout.train.vector_env import MPIVectorEnv

MODES = "next_step", "same_step", "disabled"


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have blocks of 16 rows, so that what a trainer does goes over their ends."""
    from mpi_rollout.storage import schema

    monkeypatch.setattr(schema, "rows_per_block", lambda *_: 16)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("env", "commit_every_s"), [("CartPole-v1", 0.0), ("envs:Nested", 10.0)])
def test_the_file_has_what_the_trainer_saw(
    tmp_path: Path, env: str, mode: str, commit_every_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "COMMIT_EVERY_S", commit_every_s)
    path = tmp_path / "run.h5"
    kwargs = {"max_episode_steps": 12} if env == "CartPole-v1" else {}
    told = keep_diary(env, 7, str(path), {"autoreset_mode": mode, "env_kwargs": kwargs})
    assert told is not None
    assert not differences(told, recorded(path))
    assert sum(map(len, told)) > 20
    verify(str(path))
    with h5py.File(path) as file:
        assert file["throughput"].attrs["env_steps"] == sum(file["episodes"]["length"])


WAYS: list[dict[str, Any]] = [{}, {"num_groups": 2}, {"batch_size": 1}, {"root_envs": 0, "batch_size": 1}]


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_it_does_so_however_envs_are_served(job: Job, num_ranks: int):
    cases = [
        (
            "CartPole-v1",
            11,
            f"{mode}{place}.h5",
            {"autoreset_mode": mode, "env_kwargs": {"max_episode_steps": 9}, **WAYS[place]},
        )
        for place, mode in enumerate(["disabled", "same_step", "next_step", "same_step"])
    ]
    for told, (_, _, name, _) in zip(job.train(num_ranks, "diaries", cases, 8), cases, strict=True):
        path = job.folder / name
        stored = recorded(path)
        # Envs of ranks that were ready first are ahead: their last steps are left out.
        whole = [mine[: len(others) - 1] if name[-4] > "1" else mine for mine, others in zip(told, stored, strict=True)]
        stored = [others[: len(mine)] for mine, others in zip(whole, stored, strict=True)]
        assert not differences(whole, stored), name
        # Where the ready ones are served first, one rank may have had all turns: then no step is whole.
        assert sum(map(len, whole if name[-4] < "2" else told)) > 20, name
        verify(str(path))


ECHOED = {"place": (np.int64, (4,)), "lives": "uint8", "episode/l": int}


def check_echoes(path: Path) -> None:
    """Check that each observation of each episode stands beside what the env said with it."""
    verify(str(path))
    num_ends = 0
    for episode in mpi_rollout.open(path).iter_episodes(unfinished=True, columns=["observations", "infos"]):
        infos, steps = episode.infos, np.arange(episode.length + 1)
        assert episode.knows_final and np.array_equal(episode.observations[:, 2], steps)
        assert np.array_equal(infos["place"], episode.observations) and infos["_place"].all()
        assert np.array_equal(infos["_lives"], steps % 2 == 1) and infos["lives"].dtype == np.uint8
        assert np.array_equal(infos["lives"], steps * infos["_lives"])
        lengths = infos["episode"]["_l"]
        assert not lengths[:-1].any() and (lengths[-1] or not episode.terminated)
        assert infos["episode"]["l"][-1] == lengths[-1] * episode.length
        num_ends += int(lengths[-1])
    assert num_ends > 10


@pytest.mark.parametrize(("mode", "commit_every_s"), [*zip(MODES, (10.0, 0.0, 0.0), strict=True)])
def test_infos_that_are_named_stand_beside_their_observations(
    tmp_path: Path, mode: str, commit_every_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "COMMIT_EVERY_S", commit_every_s)
    options = {"autoreset_mode": mode, "infos": ECHOED}
    assert keep_diary("telling_envs:Echoing", 7, str(tmp_path / "run.h5"), options) is not None
    check_echoes(tmp_path / "run.h5")


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_infos_that_are_named_are_stored_from_all_ranks(job: Job, num_ranks: int):
    cases = [
        ("telling_envs:Echoing", 11, f"{place}.h5", {"autoreset_mode": MODES[place % 2], "infos": ECHOED, **way})
        for place, way in enumerate(WAYS)
    ]
    job.train(num_ranks, "diaries", cases, 8)
    for _, _, name, _ in cases:
        check_echoes(job.folder / name)


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        ({"x": np.complex64}, "infos: 'x' must have a dtype of numbers"),
        ({"x": int, "_x": int}, "the mask of 'x' is stored as '_x'"),
        ({"..": int}, "'..' cannot be a name in HDF5"),
    ],
)
def test_infos_that_no_file_can_hold_are_refused(tmp_path: Path, infos: Any, words: str):
    path = tmp_path / "run.h5"
    assert words in refusal_of(lambda: mpi_rollout.connect(Counting, 1, infos=infos, record=path), UsageError)
    assert not list(tmp_path.iterdir())


def test_an_info_that_no_env_gives_is_told_at_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    infos = {"never": int, "episode/l": int}
    recorded_steps(tmp_path / "run.h5", Echoing, infos=infos, autoreset_mode="same_step").close()
    assert "infos: no env has given the info 'never'; all masks are false" in capfd.readouterr().err


@pytest.mark.parametrize("mode", MODES)
def test_the_reading_api_gives_the_same(tmp_path: Path, mode: str):
    told = keep_diary("envs:Nested", 5, str(tmp_path / "run.h5"), {"autoreset_mode": mode})
    assert told is not None
    data, stored = mpi_rollout.open(tmp_path / "run.h5"), [[] for _ in told]
    space_leaves, action_leaves = leaves(data.observation_space), leaves(data.action_space)
    for episode in data.iter_episodes(unfinished=True):
        rows = range(episode.length + 1)
        seen = [[np.array(leaf.of(episode.observations)[row]) for leaf in space_leaves] for row in rows]
        actions = [[np.array(leaf.of(episode.actions)[row]) for leaf in action_leaves] for row in rows[:-1]]
        ends = {name: bool(getattr(episode, name)) for name in ("terminated", "truncated")}
        parts = {"observations": seen, "actions": actions, "rewards": list(episode.rewards), "seed": episode.seed}
        stored[episode.env_index].append((episode.start, parts | ends))
    assert not differences(told, [[parts for _, parts in sorted(rows, key=lambda row: row[0])] for rows in stored])


@pytest.mark.parametrize("mode", MODES)
def test_observations_that_are_read_alone_have_the_last_ones(tmp_path: Path, mode: str):
    keep_diary("envs:Counting", 3, str(tmp_path / "run.h5"), {"autoreset_mode": mode})
    data = mpi_rollout.open(tmp_path / "run.h5")
    alone = [*data.iter_episodes(columns=["observations"])]
    assert len(alone) == len(data.episodes) > 5
    for one, whole in zip(alone, data.iter_episodes(), strict=True):
        assert one.knows_final and one.observations.tobytes() == whole.observations.tobytes()


def recorded_steps(path: Path, env: Any = "CartPole-v1", num_envs: int = 3, **options: Any) -> MPIVectorEnv:
    """Envs that are recorded and have taken 20 steps of `collect`."""
    envs = mpi_rollout.connect(env, num_envs, record=path, **options)
    envs.reset(seed=1)
    envs.collect(20)
    return envs


def refusal_of(call: Callable[[], object], kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_it_refuses_a_place_that_is_taken_before_it_makes_envs(tmp_path: Path):
    path, part = tmp_path / "run.h5", tmp_path / "run.h5.part"

    def connect() -> None:
        mpi_rollout.connect(lambda: pytest.fail("an env was made"), 1, record=path)

    path.touch()
    assert "there is such a file" in refusal_of(connect, UsageError)
    path.rename(part)
    assert f"recover {part}" in refusal_of(connect, UsageError)
    assert list(tmp_path.iterdir()) == [part]
    part.unlink()
    for name, kind, words in (
        ("no/run.h5", StorageError, "mkdir -p"),
        ("run.part", UsageError, "record="),
        (".", UsageError, "folder"),
    ):
        path = tmp_path / name
        assert words in refusal_of(connect, kind)
    assert not list(tmp_path.iterdir())


def test_envs_that_no_file_can_hold_are_refused(tmp_path: Path):
    assert "leave out record" in refusal_of(
        lambda: mpi_rollout.connect(NoNumbers, 1, record=tmp_path / "run.h5"), UsageError
    )
    assert not list(tmp_path.iterdir())


class NoNumbers(Counting):
    observation_space = gymnasium.spaces.Dict({"a/b": gymnasium.spaces.Discrete(2)})


def test_images_of_a_recording_are_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("hdf5plugin")
    for compression in ("none", "gzip", "zstd"):
        recorded_steps(tmp_path / f"{compression}.h5", Image, compression=compression).close()
        verify(str(tmp_path / f"{compression}.h5"))
    plain, gzip, zstd = (mpi_rollout.open(tmp_path / f"{name}.h5") for name in ("none", "gzip", "zstd"))
    assert np.array_equal(plain.observations[:], zstd.observations[:])
    assert np.array_equal(plain.final_observations[:], gzip.final_observations[:])
    with h5py.File(zstd.path) as file:
        assert filters.compression_of(file["trajectories/final_observations"]) == "zstd"
        assert filters.compression_of(file["trajectories/rewards"]) == "none"
    assert "compression must be one of none, gzip" in refusal_of(
        lambda: recorded_steps(tmp_path / "run.h5", compression="zip"), UsageError
    )
    monkeypatch.setattr(filters, "find_spec", lambda name: None)
    words = refusal_of(lambda: recorded_steps(tmp_path / "run.h5", compression="lz4"), UsageError)
    assert words.startswith("compression=lz4 needs the package hdf5plugin")
    assert words.endswith("or use compression=gzip")


def test_a_trainer_that_changes_its_folder_gets_the_file_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    envs = recorded_steps(Path("run.h5"))
    monkeypatch.chdir("elsewhere")
    envs.close()
    verify(str(tmp_path / "run.h5"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_a_step_there_is_no_file(tmp_path: Path):
    envs = mpi_rollout.connect("CartPole-v1", 2, record=tmp_path / "run.h5")
    envs.reset()
    assert [path.name for path in tmp_path.iterdir()] == ["run.h5.part"]
    envs.close()
    assert not list(tmp_path.iterdir())


def test_steps_before_a_reset_are_refused(tmp_path: Path):
    with mpi_rollout.connect(Counting, 2, record=tmp_path / "run.h5") as envs:
        assert "step before reset" in refusal_of(lambda: envs.step(envs.action_space.sample()), ResetNeeded)
        envs.reset()
        envs.step(envs.action_space.sample())


def test_a_program_that_ends_without_closing_leaves_a_complete_file(tmp_path: Path):
    envs = recorded_steps(tmp_path / "run.h5")
    del envs
    gc.collect()
    assert "complete" in " ".join(verify(str(tmp_path / "run.h5")))


ENDS = {
    "raise ValueError": 1,
    "sys.exit(3)": 3,
    "os.kill(os.getpid(), signal.SIGINT); envs.collect(1)": -2,
    "os.kill(os.getpid(), signal.SIGTERM); envs.collect(1)": 143,
    "": 0,
}


@pytest.mark.full_start
def test_however_a_trainer_ends_the_file_is_complete_and_one_that_is_killed_leaves_what_was_committed(job: Job):
    for number, (end, code) in enumerate(ENDS.items()):
        result = job.script(None, TRAINER.format(number=number, end=end or "pass"))
        assert result.code in (code, 128 - code), result.err
        assert "20 of each env" in " ".join(verify(str(job.folder / f"{number}.h5"))), end
    killed = job.script(None, TRAINER.format(number=9, end="envs.end.recorder.writer.drain(); os.kill(os.getpid(), 9)"))
    assert killed.code in (-9, 137)
    part = str(job.folder / "9.h5.part")
    lines = " ".join(recover(part, None))
    assert "recovered and whole" in lines and "17 of each env" in lines
    assert "reset(seed=...)" in " ".join(verify(part))
    with h5py.File(job.folder / "9.h5") as file, h5py.File(job.folder / "0.h5") as whole:
        assert np.array_equal(file["trajectories/observations"], whole["trajectories/observations"][:18])
        assert len(file["resets"]) == 3


TRAINER = """
import os, signal, sys, mpi_rollout, numpy as np
from mpi_rollout.train import recorder

recorder.COMMIT_EVERY_S = 0
envs = mpi_rollout.connect("CartPole-v1", 3, record="{number}.h5")
envs.reset(seed=1)
envs.collect(19, np.zeros((19, 3), np.int64))
envs.step(np.ones(3, np.int64))
{end}
"""


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("end", "words"),
    [("raise ValueError('mine')", "mine"), ("os.kill(os.getpid(), signal.SIGTERM); envs.collect(1)", "")],
)
def test_a_trainer_on_several_ranks_that_fails_leaves_a_complete_file(job: Job, num_ranks: int, end: str, words: str):
    code = TRAINER.replace("\nenvs = ", "\nwith ").replace('.h5")\n', '.h5") as envs:\n  if envs is not None:\n')
    head, body = code.format(number=0, end=end).split("None:\n")
    program = f"{head}None:\n" + "\n".join(f"    {line}" for line in body.splitlines())
    result = job.script(num_ranks, program)
    assert result.code != 0 and words in result.err
    assert "20 of each env" in " ".join(verify(str(job.folder / "0.h5")))


def test_a_full_disk_is_told_before_a_step_and_what_is_committed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, append = tmp_path / "run.h5", RunFile.append
    monkeypatch.setattr(recorder, "COMMIT_EVERY_S", 0.0)
    envs = recorded_steps(path)
    envs.collect(30)
    assert envs.end.recorder is not None
    envs.end.recorder.writer.drain()

    def fail(self: RunFile, block: Any, num_rows: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFile, "append", fail)
    with pytest.raises(StorageError) as caught:
        for _ in range(100):
            envs.collect(10)
    assert f"recover {path}.part" in str(caught.value)
    envs.close()
    monkeypatch.setattr(RunFile, "append", append)
    assert [found.name for found in tmp_path.iterdir()] == ["run.h5.part"]
    assert "what is committed is whole" in verify(f"{path}.part")[0]


def test_a_disk_that_is_full_before_a_step_is_committed_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    envs = mpi_rollout.connect(Counting, 2, record=tmp_path / "run.h5")
    envs.reset()
    envs.collect(5)

    def fail(self: RunFile, block: Any, num_rows: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFile, "append", fail)
    assert "its first 0 steps are committed" in refusal_of(envs.close, StorageError)
    assert not list(tmp_path.iterdir())


def test_episodes_that_a_seed_began_can_be_replayed(tmp_path: Path):
    for mode in MODES[:2]:
        envs = recorded_steps(path := tmp_path / f"{mode}.h5", autoreset_mode=mode)
        envs.reset(seed=5)
        envs.collect(60)
        envs.reset(seed=5, options={"low": -0.01})
        envs.collect(10)
        envs.close()
        assert any(line.startswith("replay        6 episodes") for line in verify(str(path), 1000)), mode
    envs = mpi_rollout.connect("CartPole-v1", 2, record=tmp_path / "unseeded.h5")
    envs.reset()
    envs.collect(3)
    envs.close()
    assert "it has none" in refusal_of(lambda: verify(str(tmp_path / "unseeded.h5"), 10), UsageError)


def test_envs_that_are_made_again_are_faulted(tmp_path: Path):
    for number, infos in enumerate(("all", "none", {"step": int})):
        path = tmp_path / f"{number}.h5"
        envs = recorded_steps(path, Stumbling, max_env_restarts=1, infos=infos)
        envs.set_attr("fails", ["", "step", ""])
        envs.collect(1)
        envs.collect(2)
        envs.close()
        verify(str(path))
        with h5py.File(path) as file:
            assert file["faults"]["env_index"].tolist() == [1] and file["faults"]["step"].tolist() == [20]
            assert file["episodes"]["faulted"].sum() == 1


@pytest.mark.parametrize("infos", ["all", "none"])
def test_envs_that_fail_and_reset_in_the_same_step_are_faulted_in_that_step(tmp_path: Path, infos: str):
    """Their last infos say why, and not those of the reset."""
    path = tmp_path / "run.h5"
    envs = recorded_steps(path, Stumbling, max_env_restarts=1, infos=infos, autoreset_mode="same_step")
    envs.set_attr("fails", ["", "step", ""])
    envs.collect(3)
    envs.close()
    verify(str(path))
    with h5py.File(path) as file:
        assert file["faults"]["env_index"].tolist() == [1] and file["faults"]["step"].tolist() == [20]
        assert file["episodes"]["faulted"].sum() == 1


def test_after_a_failure_the_episodes_that_were_under_way_are_truncated(tmp_path: Path):
    path = tmp_path / "run.h5"
    envs = recorded_steps(path, Stumbling)
    envs.set_attr("fails", ["", "step", ""])
    with pytest.raises(RankError):
        envs.collect(4)
    envs.reset(seed=2)
    envs.collect(3)
    envs.close()
    verify(str(path))
    with h5py.File(path) as file:
        assert file["trajectories"].attrs["num_steps"] == 23
        assert (file["trajectories/terminations"][19] | file["trajectories/truncations"][19]).all()
        assert sorted(file["episodes"]["seed"][-3:]) == [2, 3, 4]


def test_what_a_policy_on_the_ranks_gives_is_stored_with_its_version(tmp_path: Path):
    path = tmp_path / "run.h5"
    envs = recorded_steps(path, policy=Sampling)
    envs.set_policy(Sampling().parameters)
    batch = envs.collect(5)
    envs.step(np.zeros(3, np.int64))
    envs.collect(2, np.zeros((2, 3), np.int64))
    envs.close()
    verify(str(path))
    with h5py.File(path) as file:
        extras = file["trajectories/extras"]
        assert extras["policy_version"][:, 0].tolist() == [0] * 20 + [1] * 5 + [-1] * 3
        assert np.array_equal(extras["log_prob"][20:25], batch["extras"]["log_prob"])
        assert np.isnan(extras["log_prob"][25:]).all()
        assert np.array_equal(file["trajectories/actions"][20:25], batch["actions"])


def test_a_run_does_not_go_on_with_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recorded_steps(path := tmp_path / "run.h5").close()
    assert main(["--env", "CartPole-v1", "--num-envs", "3", "--num-steps", "99", "--out", str(path)]) == 64
    assert "is the recording of a trainer, which no run continues; move it away" in capsys.readouterr().err
    verify(str(path))
