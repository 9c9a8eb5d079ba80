"""What people type for an option or an argument, and the word that works.

A guess that misleads is worse than none.  So the words of other programs are in tables, and beside them only what is
nearly an option is taken for one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from mpi_rollout.errors import Option, as_argument

LEAST_LIKENESS = 0.75  # A ratio of `difflib`: a letter or two are wrong.  With 0.6, --device would be --env.
_OPTIONS = {  # The words of other programs and of `connect`, by the options of the same meaning.
    "env": "e env-id env-name environment gym-id task",
    "env-factory": "entry-point env-fn factory make-env",
    "env-kwargs": "env-args env-config kwargs",
    "num-envs": "environments envs-per-rank n-envs nenvs num-environments",
    "envs-per-rank": "envs-per-worker num-envs num-envs-per-rank",
    "num-envs env": "envs",
    "num-steps": "max-steps n-steps nsteps steps steps-per-env",
    "num-episodes": "episodes n-episodes",
    "num-groups": "groups n-groups",
    "seed": "random-seed rng s",
    "policy": "agent model p policy-file policy-path weights",
    "on-rank-loss": "ft",
    "policy-on": "inference",
    "policy-mode": "deterministic explore greedy sample stochastic",
    "trust-policy": "trust",
    "store-extras": "extras",
    "store-infos": "infos record-infos",
    "out": "file filename o outfile output path record save save-path",
    "overwrite": "f force replace",
    "compression": "compress record-compression",
    "env-checks": "checks",
    "no-trajectories": "no-record no-save no-store throughput-only",
    "fragment-length": "rollout-fragment-length rollout-length unroll-length",
    "vectorization-mode": "vector-mode vectorization vectorize",
    "env-threads": "n-threads num-threads threads",
    "env-timeout-s start-timeout-s": "timeout timeout-s",
    "max-env-restarts": "max-restarts restarts",
    "max-walltime": "duration max-time time time-limit walltime",
    "measure-limit": "limit",
    "progress": "quiet silent verbose",
    "dry-run": "dry",
    "ranks": "n n-ranks np nproc nprocs ntasks num-processes num-procs num-ranks num-workers workers",
}
_OF_RUN = {  # What `run` has no option for, by the answer, which may name the {word} and its {number}.
    "the launcher starts the ranks: mpirun -n {number} python -m mpi_rollout ...": "cpus num-cpus parallel ranks "
    + _OPTIONS["ranks"],
    "--num-steps is the number of steps of each env, so divide by --num-envs": "num-timesteps "
    "timesteps total-steps total-timesteps",
    "the same command continues a run that was interrupted": "continue restart resume resume-from",
    "trajectories are stored unless --no-trajectories is given": "store-trajectories trajectories",
    "that is a command: python -m mpi_rollout {word} FILE": "export inspect plot render verify",
    "each episode has a seed of its own unless --no-episode-seeds is given": "episode-seeds",
    "this replays episodes of a file: python -m mpi_rollout verify FILE --replay {number}": "replay",
    "--out names the file: --out FOLDER/run.h5": "dir folder out-dir output-dir save-dir",
    "all ranks take each step together unless --batch-size K is given: --batch-size 1 was --mode async": "async mode",
    "did you mean --root-envs 0?": "dedicated-root",
    "did you mean --max-env-restarts N?": "on-env-error",
    "did you mean --env-checks finite?": "check-finite",
    "did you mean --env-checks bounds?": "check-bounds",
    "did you mean --env-checks dtypes?": "strict-dtypes",
    "a run has next_step; `connect` has the other modes": "autoreset autoreset-mode",
    "the env has this limit: --env-kwargs '{\"max_episode_steps\": 200}'": "horizon max-episode-steps",
}
_OF_CONNECT = {  # What is otherwise for `connect` than for the command line, by the answer.
    "env may be a callable, too": "env_factory env_fn make make_env",
    "env may be a list of callables, too": "env_fns",
    "did you mean root_envs=0?": "dedicated_root",
    'did you mean env_checks="finite"?': "check_finite",
    'did you mean env_checks="bounds"?': "check_bounds",
    'did you mean env_checks="dtypes"?': "strict_dtypes",
    "did you mean max_env_restarts?": "on_env_error",
    "did you mean timeout_s?": "start_timeout_s timeout",
    "batch_size=1 serves the rank first that is ready first": "mode",
    "give it to reset(seed=...)": "seed",
    "only reset(seed=...) seeds the envs, as in Gymnasium; no option is needed": "episode_seeds no_episode_seeds",
    "the trainer decides how many steps the envs take": "num_steps steps total_timesteps",
    "give the number of steps to collect()": "fragment_length",
    "ranks are started by mpirun -n 4 python trainer.py, or by mpi_rollout.launch(..., num_ranks=4)": "ranks num_ranks "
    "num_workers num_processes",
}


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: answer for answer, words in table.items() for word in words.split()}


SAME, OF_RUN, OF_CONNECT = map(_by_word, (_OPTIONS, _OF_RUN, _OF_CONNECT))


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the known one that is nearly the same, if one is."""
    matches = get_close_matches(word, list(names), n=1, cutoff=LEAST_LIKENESS)
    return f"; did you mean {matches[0]}?" if matches else ""


def option_words(word: str, names: Collection[str], is_run: bool, number: str) -> str:
    """Return the end of a message about an option that a command does not have: what to type, or "".

    `word` was typed, with a `number` as its value or ""; `names` are the command's options.  No dashes are before them.
    """
    word = word.lower().replace("_", "-")
    if is_run and word in OF_RUN:
        return "; " + OF_RUN[word].replace("{number}", number or "N").replace("{word}", word)
    options = [f"--{name}" for name in same_options(word, names)]
    return f"; did you mean {' or '.join(options)}?" if options else ""


def same_options(word: str, names: Collection[str]) -> Sequence[str]:
    """Return the options that a word may stand for: mostly one or none."""
    if word in names:
        return [word]
    if same := [name for name in SAME.get(word, "").split() if name in names]:
        return same
    alike = [name for name in names if name.startswith("no-") == word.startswith("no-")]  # Not the opposite.
    parts = set(word.split("-"))
    longer = [name for name in alike if len(parts) > 1 and parts < set(name.split("-"))]
    return longer[:3] or get_close_matches(word, alike, n=1, cutoff=LEAST_LIKENESS)


def argument_words(word: str, names: Collection[str], options: Collection[str]) -> str:
    """Return the end of a message about an argument that `connect` does not have; `options` are those of runs."""
    if word in OF_CONNECT:
        return f"; {OF_CONNECT[word]}"
    option = word.replace("_", "-")
    same = [as_argument(Option(name.replace("-", "_"))) for name in SAME.get(option, option).split()]
    if known := [name for name in same if name in names]:
        return f"; did you mean {' or '.join(known)}?"
    return did_you_mean(word, names) or "; it is an option of runs on the command line" * (word in options)
