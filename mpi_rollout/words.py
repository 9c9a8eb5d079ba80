"""Suggestions for a mistyped option or argument: the one of our own that is nearly the same.

A guess that misleads is worse than none, so only what is nearly an option is taken for one.
"""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

LEAST_LIKENESS = 0.75  # A ratio of `difflib`: a letter or two are wrong.  With 0.6, --device would be --env.


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the known one that is nearly the same, if one is."""
    matches = get_close_matches(word, list(names), n=1, cutoff=LEAST_LIKENESS)
    return f"; did you mean {matches[0]}?" if matches else ""


def option_words(word: str, names: Collection[str]) -> str:
    """Return the end of a message about an option that a command does not have: what to type, or "".

    `word` was typed; `names` are the command's options.  No dashes are before them.
    """
    options = [f"--{name}" for name in same_options(word.lower().replace("_", "-"), names)]
    return f"; did you mean {' or '.join(options)}?" if options else ""


def same_options(word: str, names: Collection[str]) -> Sequence[str]:
    """Return the options that a word may stand for: mostly one or none."""
    if word in names:
        return [word]
    alike = [name for name in names if name.startswith("no-") == word.startswith("no-")]  # Not the opposite.
    parts = set(word.split("-"))
    longer = [name for name in alike if len(parts) > 1 and parts < set(name.split("-"))]
    return longer[:3] or get_close_matches(word, alike, n=1, cutoff=LEAST_LIKENESS)


def argument_words(word: str, names: Collection[str], options: Collection[str]) -> str:
    """Return the end of a message about an argument that `connect` does not have; `options` are those of runs."""
    if word in options:
        return "; it is an option of runs on the command line"
    return did_you_mean(word, names)
