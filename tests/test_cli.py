"""The command line: derived from the configuration, and one clear line for whatever cannot work."""

import json
import shutil
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from jobs import CLONE, HELPERS, Job, Result, Start
from refusals import refusal, refused

from mpi_rollout.cli import make_parser
from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.errors import UsageError
from mpi_rollout.text import pip_install

pytestmark = pytest.mark.any_mpi

GOOD = ("--env-factory", "envs:Counting", "--num-envs", "4", "--num-steps", "3", "--progress", "none")
OUT = ("--out", "run.h5")
OTHER_VALUES = {
    "env": "Acrobot-v1", "env_factory": "envs:Counting", "env_kwargs": '{"a": [1, null]}', "num_envs": "7",
    "num_steps": "8", "num_episodes": "4", "seed": "9", "policy": "policies:leaning", "out": "other.h5",
    "vectorization_mode": "vector_entry_point", "expect_ranks": "3", "progress": "bar",
    "ranks_per_env": "2", "num_groups": "2", "batch_size": "3", "first_env": "5", "max_walltime": "10:00",
    "storage": "sharded", "shards_per_node": "3",
    "max_env_restarts": "3", "env_checks": "finite,dtypes", "env_timeout_s": "2.5", "on_rank_loss": "shrink",
    "wait": "sleep", "compression": "gzip", "limit_s": "0.5", "actions": "clip", "start_timeout_s": "30",
    "fragment_length": "16", "policy_on": "workers", "env_threads": "2", "root_envs": "3", "policy_mode": "sample",
    "policy_block": "16", "policy_kwargs": '{"a": 1}', "policy_device": "cuda:1",
    "store_infos": '{"lives": int}', "wrappers": "gymnasium.wrappers:FlattenObservation",
    "log_dir": "curves", "trace": "trace.json", "trace_part": "0-1:5-9",
}  # fmt: skip


def options_of(*arguments: str) -> dict:
    options = vars(make_parser().parse_args(["run", *arguments]))
    options.pop("command"), options.pop("dry_run")
    return options


def stub(folder: Path, name: str, code: str) -> dict[str, str]:
    """Put a module in the place of an installed one; return what the job's environment needs for it."""
    (folder / "stubs").mkdir()
    (folder / "stubs" / f"{name}.py").write_text(code)
    return {"PYTHONPATH": f"{folder / 'stubs'}:{CLONE}:{HELPERS}"}


def test_every_field_of_the_configuration_is_an_option_and_there_is_no_other():
    assert set(options_of()) == {each.name for each in fields(RolloutConfig)}


def test_defaults_of_the_command_line_are_those_of_the_configuration():
    defaults = {each.name: each.default_factory() if each.default is MISSING else each.default for each in
                fields(RolloutConfig)}  # fmt: skip
    assert options_of() == defaults


@pytest.mark.parametrize("field", fields(RolloutConfig), ids=lambda each: each.name)
def test_an_option_changes_its_field_and_no_other(field):
    if isinstance(field.default, bool):
        arguments = [flag(f"no-{field.name}" if field.default else field.name)]
    else:
        arguments = [flag(field.name), OTHER_VALUES[field.name]]
    before, after = options_of(), options_of(*arguments)
    assert {name for name in after if after[name] != before[name]} == {field.name}
    assert type(after[field.name]) in (type(before[field.name]), str, int, float)


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000), ("64E3", 64000), ("1_000", 1000), ("2.0", 2)])
def test_a_whole_number_may_be_written_in_any_way(text: str, value: int):
    assert options_of("--num-steps", text)["num_steps"] == value
    assert vars(make_parser().parse_args(["verify", "run.h5", "--replay", text]))["replay"] == value


@pytest.mark.parametrize("command", [["run"], ["scaling", "weak"]])
def test_the_home_folder_is_known_where_the_shell_leaves_it_as_it_is(command: list[str]):
    assert make_parser().parse_args([*command, "--out=~/run.h5"]).out == str(Path.home() / "run.h5")


@pytest.mark.parametrize("field", fields(RolloutConfig), ids=lambda each: each.name)
def test_the_help_has_every_option_with_its_meaning(field, capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert flag(field.name).removeprefix("--") in text
    assert field.metadata["help"].split(":")[0].split(",")[0] in text


def test_the_configuration_checks_itself_without_a_command_line():
    with pytest.raises(UsageError, match="progress must be one of auto, bar, lines, none, got dots"):
        RolloutConfig(env="CartPole-v1", progress="dots")


def test_help_and_version_need_no_mpi(job: Job):
    no_mpi = {"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"}
    commands = ("--help", "run --help", "--version", "inspect --help", "verify --help", "recover --help")
    for result in job.series([Start(command.split(), environment=no_mpi) for command in commands]):
        assert (result.code, result.err) == (0, "") and "mpi_rollout" in result.out


BAD = [
    ([], "give one of --env ID and --env-factory MODULE:CALLABLE, got none"),
    (["--env", "CartPole-v1", "--env-factory", "envs:Counting"], "got both"),
    ([*GOOD, "--nun-envs", "3"], "there is no option --nun-envs; did you mean --num-envs?"),
    ([*GOOD, "--num-env", "3"], "there is no option --num-env; did you mean --num-envs?"),
    ([*GOOD, "--num_envs=3"], "there is no option --num_envs; did you mean --num-envs?"),
    ([*GOOD, "-num-envs", "3"], "there is no option -num-envs; did you mean --num-envs?"),
    ([*GOOD, "\u2013num-envs", "3"], "there is no option \u2013num-envs; did you mean --num-envs?"),
    ([*GOOD, "--quickly"], "there is no option --quickly; see python -m mpi_rollout run --help"),
    ([*GOOD, "64"], "'64' is one argument too many; see python -m mpi_rollout run --help"),
    ([*GOOD, ""], "'' is one argument too many"),
    (["scaling", "weak", "--env-per-rank", "3"], "there is no option --env-per-rank; did you mean --envs-per-rank?"),
    (["verify", "run.h5", "--relpay", "3"], "there is no option --relpay; did you mean --replay?"),
    (["inspekt", "run.h5"], "there is no command 'inspekt'; did you mean inspect?"),
    (["simulate"], "there is no command 'simulate'; the commands are run, inspect, "),
    ([str(CLONE / "setup.cfg")], f"try python -m mpi_rollout inspect {CLONE / 'setup.cfg'}"),
    (["--env"], "argument --env: expected one argument"),
    ([*GOOD, "--num-envs", "0"], "--num-envs must be at least 1, got 0"),
    ([*GOOD, "--num-envs", "-4"], "--num-envs must be at least 1, got -4"),
    ([*GOOD, "--num-envs", "many"], "--num-envs must be a whole number such as 1000 or 1e3, got 'many'"),
    ([*GOOD, "--num-steps", "0"], "--num-steps must be at least 1, got 0"),
    ([*GOOD, "--num-steps", "-1"], "--num-steps must be at least 1, got -1"),
    ([*GOOD, "--num-steps", "1.5"], "--num-steps must be a whole number such as 1000 or 1e3, got '1.5'"),
    ([*GOOD, "--num-steps", "1e-3"], "--num-steps must be a whole number such as 1000 or 1e3, got '1e-3'"),
    ([*GOOD, "--num-steps", "inf"], "--num-steps must be a whole number such as 1000 or 1e3, got 'inf'"),
    ([*GOOD, "--num-steps", "1e999999999"], "--num-steps must be a whole number of at most 64 bits, "),
    ([*GOOD, "--seed", "-1"], "--seed must be at least 0, got -1"),
    ([*GOOD, "--seed", "99999999999999999999"], "--seed must be a whole number of at most 64 bits, 1844674407"),
    ([*GOOD, "--limit-s", "long"], "--limit-s must be a number, got 'long'"),
    ([*GOOD, "--expect-ranks", "0"], "--expect-ranks must be at least 1, got 0"),
    ([*GOOD, "--num-groups", "0"], "--num-groups must be at least 1, got 0"),
    ([*GOOD, "--num-groups", "5"], "--num-groups 5 needs at least 5 envs for each rank that steps envs, got"),
    ([*GOOD, "--batch-size", "1", "--num-groups", "2"], "--batch-size makes a group of each rank, got --num-groups 2"),
    ([*GOOD, "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
    ([*GOOD, "--batch-size", "2"], "--batch-size must be 1 where one rank steps all envs, got 2"),
    ([*GOOD, "--limit-s", "3"], "--limit-s 3 is for --measure-limit, which is not given; add it, or leave this out"),
    ([*GOOD, "--dry-run", "--limit-s", "3"], "--limit-s 3 is for --measure-limit"),
    ([*GOOD, "--env-threads", "2"], "--env-threads 2 is for --vectorization-mode native, envpool or vector_entry"),
    ([*GOOD, "--store-extras"], "--store-extras is for --policy MODULE:make_policy, which is not given"),
    ([*GOOD, "--policy-block", "2"], "--policy-block 2 is for another --policy than random, which is not given"),
    ([*GOOD, "--compression", "gzip", "--no-trajectories"], "--compression gzip is for trajectories, got --no-traj"),
    ([*GOOD, "--ranks", "4"], "there is no option --ranks; see python -m mpi_rollout run --help"),
    ([*GOOD, "--store-extras", "True"], "--store-extras takes no value, got 'True'"),
    ([*GOOD, "--store-extras=True"], "--store-extras takes no value, got 'True'"),
    ([*GOOD, "--env-checks", "nan"], "--env-checks must be none, or some of finite, bounds, dtypes with commas"),
    ([*GOOD, "--env-checks", ""], "--env-checks must be none, or some of finite, bounds, dtypes with commas"),
    (["num_envs=4"], "there is no command 'num_envs=4'; did you mean --num-envs 4?"),
    (["CartPole-v1"], "there is no command 'CartPole-v1'; did you mean --env CartPole-v1?"),
    (["run", "CartPole-v1"], "'CartPole-v1' is one argument too many; did you mean --env CartPole-v1?"),
    ([str(HELPERS / "envs.py")], "did you mean --env-factory "),
    (["--env", "mine.py:make"], "--env mine.py:make is the callable of a file, not the id of an env; on the command "),
    (["--env", "policies:leaning"], "it is a callable of a module, not the id of an env; on the command line --env-f"),
    (["compare", "--env", "CartPole-v1", "--ranks", "1", "--num-env", "2"], "did you mean --num-envs?"),
    ([*GOOD, "--max-walltime", "soon"], "--max-walltime must be like 01:30:00 or 1-12:00:00, got 'soon'"),
    ([*GOOD, "--max-walltime", "0"], "--max-walltime must be more than nothing, got '0'"),
    ([*GOOD, "--progress", "dots"], "argument --progress: invalid choice: 'dots'"),
    ([*GOOD, "--vectorization-mode", "async"], "argument --vectorization-mode: invalid choice: 'async'"),
    ([*GOOD, "--env-kwargs", "{level: 3}"], "--env-kwargs must be a JSON object such as '{\"level\": 3}', got"),
    ([*GOOD, "--env-kwargs", "[" * 5000], "[[ ...': maximum recursion depth exceeded"),
    ([*GOOD, "--env-kwargs", ""], "--env-kwargs must be a JSON object"),
    ([*GOOD, "--env-kwargs", "[3]"], "--env-kwargs must be a JSON object, or a list of one for each env, got 3"),
    ([*GOOD, "--env-kwargs", "null"], "--env-kwargs must be a JSON object, or a list of one for each env, got null"),
    ([*GOOD, "--env-kwargs", '"level"'], 'must be a JSON object, or a list of one for each env, got "level"'),
    ([*GOOD, "--env-kwargs", '{"level": 3}'], "unexpected keyword argument 'level'"),
    (["--env", "CartPole-v1", "--env-kwargs", '{"levle": 3}'], "unexpected keyword argument 'levle'"),
    (["--env", "CartPoel-v1"], "Environment `CartPoel` doesn't exist. Did you mean: `CartPole`?"),
    (["--env", "CartPole-v7"], "It provides versioned environments: [ `v0`, `v1` ]"),
    (["--env", "Nothing alike"], "--env Nothing alike: "),
    (["--env", "Unheard-v0"], "`Unheard` doesn't exist; if a package registers it, put its module before a colon, as"),
    (["--env", "CartPole-v1", "--env-kwargs", '{"levle": 3}'], "--env-kwargs {'levle': 3} do not fit CartPole-v1: "),
    (["--env", ""], "Malformed environment ID"),
    (["--env", ":CartPole-v1"], "--env must be ID or MODULE:ID, got ':CartPole-v1'"),
    (["doctor", "--timeout-s", "nan"], "--timeout-s must be more than 0 s and at most 1e+06, got nan"),
    (["--env", "no_such_package:Env-v0"], "install it, or correct the name before the colon"),
    (["--env-factory", "envs"], "--env-factory must be MODULE:CALLABLE or FILE.py:CALLABLE, got 'envs'"),
    (["--env-factory", "envs:"], "--env-factory must be MODULE:CALLABLE or FILE.py:CALLABLE, got 'envs:'"),
    (["--env-factory", "no_such_module:make"], "; for a file elsewhere: FOLDER/no_such_module.py:make"),
    (["--env-factory", "envs:Countin"], "--env-factory envs:Countin: module 'envs' has no attribute 'Countin'"),
    (["--env-factory", "failing_envs:number"], "--env-factory failing_envs:number is int, not callable"),
    (["--env-factory", "envs:Text"], "Text spaces have no fixed shape and cannot be gathered, got Text("),
    ([*GOOD, "--policy", "greedy"], "--policy must be MODULE:CALLABLE or FILE.py:CALLABLE, got 'greedy'"),
    ([*GOOD, "--policy", ""], "--policy must be MODULE:CALLABLE or FILE.py:CALLABLE, got ''"),
    ([*GOOD, "--policy", "no_such_module:act"], "cannot import 'no_such_module': ModuleNotFoundError"),
    ([*GOOD, "--policy", "policies:no_such"], "--policy policies:no_such: module 'policies' has no attribute"),
    ([*GOOD, "--policy", "failing_envs:number"], "--policy failing_envs:number is int, not callable"),
    ([*GOOD, "--out", ""], "--out must name a file or folder, got '' (is a variable of the shell not set?)"),
    ([*GOOD, "--out", "a folder/"], "--out must name a file, got the folder a folder/; use --out 'a folder/run.h5'"),
    ([*GOOD, "--out", "."], "--out must name a file, got the folder .; use --out ./run.h5"),
    ([*GOOD, "--out", "my run.h5.part"], ".part is for files that are not complete; use --out 'my run.h5'"),
    ([*GOOD, "--out", "-"], "--out - is no file, and HDF5 cannot be written to stdout; use --out run.h5"),
    ([*GOOD, "--out", "/dev/null"], "--out /dev/null is no file but a device, pipe or socket; use another"),
]  # fmt: skip


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Result, Path]]:
    """How each of them ends, and the folder in which it was started."""
    job, starts = Job(tmp_path_factory.mktemp("bad")), []
    for number, (arguments, _) in enumerate(BAD):
        (job.folder / str(number)).mkdir()
        starts.append(Start([*arguments, *([] if "--out" in arguments else OUT)], job.folder / str(number)))
    return [(result, start.folder) for result, start in zip(job.series(starts), starts, strict=True)]


@pytest.mark.parametrize("number", range(len(BAD)), ids=lambda number: " ".join(BAD[number][0][-3:]))
def test_a_bad_value_is_refused_in_one_line_that_says_what_is_wrong(bad: list[tuple[Result, Path]], number: int):
    result, folder = bad[number]
    assert BAD[number][1] in refusal(result)
    assert list(folder.iterdir()) == []


def test_where_a_space_is_refused_the_message_has_its_place_in_the_tree(job):
    assert "at 'mission'; --wrappers gymnasium.wrappers:FlattenObservation makes one Box" in refused(
        job, "--env-factory", "envs:Text", "--out", "run.h5"
    )


@pytest.mark.parametrize(
    ("module", "code", "env", "extra"),
    [
        ("ale_py", "raise ModuleNotFoundError(\"No module named 'ale_py'\")", "ale_py:ALE/Breakout-v5", "atari"),
        ("mujoco", "raise ImportError('broken')", "Ant-v5", "mujoco"),
    ],
)
def test_an_env_whose_package_is_missing_names_the_extra_to_install(job, module, code, env, extra):
    message = refused(job, "--env", env, "--out", "run.h5", **stub(job.folder, module, code))
    assert message.startswith(f"--env {env}: ")
    assert message.endswith(pip_install(f"[{extra}]"))


def test_a_policy_whose_module_fails_to_import_gives_the_reason(job):
    (job.folder / "half_written.py").write_text("def act(observations)\n")
    line = refused(job, *GOOD, "--policy", "half_written:act", "--out", "run.h5", PYTHONDONTWRITEBYTECODE="1")
    assert "cannot import 'half_written': SyntaxError: expected ':'" in line


def test_an_output_that_exists_is_refused_and_not_touched(job):
    (job.folder / "run.h5").write_bytes(b"years of work")
    assert f"--out run.h5: {job.folder / 'run.h5'} exists; move it away" in refused(job, *GOOD, "--out", "run.h5")
    assert (job.folder / "run.h5").read_bytes() == b"years of work"


def test_what_has_the_name_of_an_unfinished_output_is_refused_and_not_touched(job):
    (job.folder / "run.h5.part").write_bytes(b"years of work")
    line = refused(job, *GOOD, "--out", "run.h5", code=65)
    assert "run.h5.part cannot be continued: " in line and "move it away" in line
    assert (job.folder / "run.h5.part").read_bytes() == b"years of work"


def test_an_output_that_is_a_dangling_link_is_refused(job):
    (job.folder / "run.h5").symlink_to("elsewhere.h5")
    assert "run.h5 is a link to elsewhere.h5, which is not there" in refused(job, *GOOD, "--out", "run.h5")


def test_a_missing_folder_is_refused_with_the_command_that_makes_it(job):
    line = refused(job, *GOOD, "--out", "new/my results/run.h5", code=74)
    assert line.endswith("; mkdir -p 'new/my results'")


def test_the_default_folder_is_made_in_any_folder_and_left_by_no_start_that_failed(job):
    assert job(None, *GOOD).code == 0
    assert (job.folder / "results" / "rollout.h5").exists()
    (job.folder / "results").rename(job.folder / "elsewhere")
    refused(job, *GOOD, "--policy", "nowhere:act")
    assert not (job.folder / "results").exists()


def test_an_output_below_a_regular_file_is_refused(job):
    (job.folder / "results").write_text("")
    assert "results; that is a file; use another --out" in refused(job, *GOOD, "--out", "results/run.h5", code=74)


NEEDS_SYSFS = pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="there is no sysfs, where nobody can write")


@NEEDS_SYSFS
def test_a_folder_that_cannot_be_written_to_is_refused(job):
    assert "--out /sys/run.h5: cannot write to /sys: " in refused(job, *GOOD, "--out", "/sys/run.h5", code=74)


@NEEDS_SYSFS
def test_a_picture_in_a_folder_that_takes_no_files_is_refused_before_its_file_is_read(job):
    """There is not even a file."""
    for options in (("--plot", "/sys/run.png"), ("--plot", "--out", "/sys")):
        line = refused(job, "inspect", "run.h5", *options, code=74)
        assert line.startswith("--plot /sys/run.png: cannot write to /sys: ")
        assert line.endswith("; --plot --out FOLDER draws into another folder")


def test_inspecting_what_is_no_file_of_this_program_is_refused(job):
    (job.folder / "notes.h5").write_text("not HDF5")
    assert "none.h5: no such file" in refused(job, "inspect", "none.h5", code=65)
    assert "notes.h5 is not a readable HDF5 file" in refused(job, "inspect", "notes.h5", code=65)


FILES = [
    (["inspect", "folder"], 65, "folder is a folder; name a file in it"),
    (["verify", "/dev/null"], 65, "/dev/null is no file but a device, pipe or socket"),
    (["verify", "empty.h5"], 65, "empty.h5 is not a readable HDF5 file: it is empty"),
    (["inspect", ""], 64, "FILE must name a file or folder, got ''"),
    (["inspect", "killed.h5"], 65, "killed.h5: no such file; there is killed.h5.part, which is not complete"),
    (["verify", "run.h5.part"], 65, "run.h5.part: no such file; there is run.h5, the complete file"),
    (["inspect", "run.h5", "run.h5", "--plot", "run.png"], 64, "--plot PNG draws one file, got 2; leave PNG out"),
    (["inspect", "run.h5", "--out", "."], 64, "--out is the folder of pictures; give --plot without a name, too"),
    (["inspect", "run.h5", "run.h5", "--plot"], 64, "--plot would draw two files as run.png"),
    (["inspect", "run.h5", "--plot", "--out", "new"], 74, "--plot new/run.png: there is no folder new; mkdir -p new"),
    (["inspect", "run.h5", "--plot", "new/run.png"], 74, "--plot new/run.png: there is no folder new; mkdir -p new"),
    (["verify", "run.h5", "--trust"], 64, "--trust is for --replay N, which is not given; add it, or leave this out"),
    (["verify", "run.h5", "--env", "CartPole-v1"], 64, "--env is for --replay N, which is not given"),
    (["verify", "run.h5", "--replay-seed", "3"], 64, "--replay-seed is for --replay N, which is not given"),
    (["inspect", "run.h5", "--plot", ""], 64, "--plot must name a file or folder, got ''"),
    (["recover", ""], 64, "FILE.part must name a file or folder, got ''"),
    (["recover", "killed.h5.part", ""], 64, "DEST must name a file or folder, got ''"),
    (["list", ""], 64, "FOLDER must name a file or folder, got ''"),
    (["plot", ""], 64, "FILE must name a file or folder, got ''"),
    (["render", "run.h5", "--out", ""], 64, "--out must name a file or folder, got ''"),
    (["export", "d4rl", "run.h5", ""], 64, "OUT must name a file or folder, got ''"),
    (["doctor", "--out", ""], 64, "--out must name a file or folder, got ''"),
    (["doctor", "--out", " "], 64, "--out must name a file or folder, got ' '"),
    (["scaling", "gather", ""], 64, "FILE must name a file or folder, got ''"),
    (["verify", "run.h5", "--replay", "-1"], 64, "--replay must be at least 0, got -1"),
    (["recover", "run.h5"], 0, "run.h5 is complete already; there is nothing to recover"),
    (["recover", "run.h5.part"], 65, "run.h5.part: no such file; there is run.h5, the complete file"),
    (["recover", "killed.h5"], 65, "killed.h5: no such file; there is killed.h5.part, which is not complete"),
    (["recover", "killed.h5.part", "--num-steps", "0"], 64, "--num-steps must be 1 to 3, the steps that are committed"),
    (["recover", "killed.h5.part", "my new/a.h5"], 74, "; mkdir -p '"),
]
GOOD_FILES = [
    ["verify", "run.h5", "empty.h5", "run.h5", "--json"],
    ["inspect", "run.h5", "--plot", "drawn"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
    """What commands say of files, and the folder of these."""
    job = Job(tmp_path_factory.mktemp("files"))
    (job.folder / "folder").mkdir()
    (job.folder / "empty.h5").touch()
    shutil.copy(job.collect(None, *GOOD), job.folder / "killed.h5.part")
    return job.folder, job.series([*(Start(each[0]) for each in FILES), *map(Start, GOOD_FILES)])


@pytest.mark.parametrize("number", range(len(FILES)), ids=lambda number: " ".join(FILES[number][0]))
def test_what_is_said_of_a_file_that_a_command_cannot_use(files: tuple[Path, list[Result]], number: int):
    _, code, words = FILES[number]
    assert words in refusal(files[1][number], code)


def test_of_several_files_each_is_verified_and_the_exit_code_is_the_worst(files: tuple[Path, list[Result]]):
    result = files[1][len(FILES)]
    whole, empty, again = map(json.loads, result.out.splitlines())
    assert result.code == 65 and whole["complete"] and again["complete"] and whole["file"] == "run.h5"
    assert empty == {"file": "empty.h5", "error": "empty.h5 is not a readable HDF5 file: it is empty"}
    assert result.messages == [empty["error"]]


def test_inspect_tells_the_name_of_the_figure_that_it_wrote(files: tuple[Path, list[Result]]):
    pytest.importorskip("matplotlib")
    assert "figure        drawn.png" in files[1][len(FILES) + 1].out
    assert (files[0] / "drawn.png").exists()


@pytest.mark.mpi(3)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "CartPoel-v1"], "Did you mean: `CartPole`?"),  # Found by all ranks, at the same time.
        (["--nun-envs", "3"], "there is no option --nun-envs"),  # Before MPI starts.
        ([*GOOD, "--policy", "policies:no_such"], "module 'policies' has no attribute 'no_such'"),  # By the root alone.
        ([*GOOD, "--num-envs", "1"], "--num-envs must be at least the number of ranks"),
    ],
    ids=["all", "before", "root", "few"],
)
def test_all_ranks_refuse_together_and_the_line_appears_once(job, num_ranks, arguments, words):
    line = refused(job, *arguments, "--out", "run.h5", num_ranks=num_ranks)
    assert words in line and not line.startswith("rank ")
