"""Reading a command line: a refusal is one line, with the way out; and the options that several commands have."""

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, NoReturn, TypeAlias

from mpi_rollout.config import flag
from mpi_rollout.core.column_types import read_types
from mpi_rollout.errors import UsageError
from mpi_rollout.options import RunOptions
from mpi_rollout.text import shortened
from mpi_rollout.words import did_you_mean, option_words, same_options

ParserOrGroup = argparse.ArgumentParser | argparse._ArgumentGroup
MOST = 2**31 - 1  # MPI counts ranks with such numbers, and files of studies count their products in 64 bits.
DASHES = tuple("-\u2010\u2011\u2012\u2013\u2014\u2212")  # Documents put others in the place of the first one.
SMALLEST, LARGEST = -(2**63), 2**64 - 1  # HDF5 and MPI have types for these.
OF_NO_COMMAND = ("-h", "--help", "--version")
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # Each command adds its parser to it.


def with_command(arguments: Sequence[str], default: str) -> list[str]:
    """Return the words of a command line, with the default command where none is named."""
    is_named = bool(arguments) and (not arguments[0].startswith(DASHES) or arguments[0] in OF_NO_COMMAND)
    return [*arguments] if is_named else [default, *arguments]


class Parser(argparse.ArgumentParser):
    """Refuses wrong options as everything else is refused: one line, once for all ranks, exit code 64.

    Options must be written out: otherwise a new option could change the meaning of a command in a script.
    """

    commands: Mapping[str, "Parser"] = {}  # The parsers of its commands, by their names.

    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False} | options)
        self.register("type", int, whole_number)  # All options with type=int use it.
        self.register("type", float, number)

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands, and know their names."""
        added = super().add_subparsers(**options)
        self.commands = added.choices  # A view: it has those that are added later.
        return added

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Read a command and its options; UsageError if a word is unknown, or an option cannot have its value."""
        if not arguments[0].startswith(DASHES) and arguments[0] not in self.commands:
            raise UsageError(self._unknown_command(arguments[0]))
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            raise UsageError(self._of(arguments)._unknown_word(arguments, unknown))
        options.typed = {word.partition("=")[0] for word in arguments}
        return options

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        message = re.sub(r"^argument (\S+): (?=must )", r"\1 ", message)
        message = re.sub(r"^argument (\S+): ignored explicit argument", r"\1 takes no value, got", message)
        raise UsageError(f"{message}; see {self.prog} --help")

    def _of(self, words: Sequence[str]) -> "Parser":
        """Return the parser of the command that a command line begins with."""
        is_command = bool(words) and words[0] in self.commands
        return self.commands[words[0]]._of(words[1:]) if is_command else self

    def _unknown_command(self, word: str) -> str:
        if word.endswith(".py"):
            return f"there is no command {shortened(word)!r}; did you mean --env-factory {word}:CALLABLE, or --policy?"
        if os.path.isfile(word):
            return f"there is no command before the file; try {self.prog} inspect {shlex.quote(word)}"
        return f"there is no command {shortened(word)!r}" + (
            self.commands["run"]._meant(word)
            or did_you_mean(word, self.commands)
            or f"; the commands are {', '.join(self.commands)}"
        )

    def _unknown_word(self, arguments: Sequence[str], unknown: Sequence[str]) -> str:
        """Say what is wrong about the first of the words that could not be read."""
        word, see = unknown[0], f"; see {self.prog} --help"
        if not word.startswith(DASHES):
            before = arguments[max(arguments.index(word) - 1, 0)]
            if before in self._option_string_actions:  # That option has taken no value.
                return f"{before} takes no value, got {shortened(word)!r}"
            return f"{shortened(word)!r} is one argument too many{self._meant(word) or see}"
        name = word.partition("=")[0]
        return f"there is no option {name}{option_words(name.lstrip(''.join(DASHES)), self._names) or see}"

    def _meant(self, word: str) -> str:
        """Say what a word without dashes may mean, such as num_envs=4 and CartPole-v1; or ""."""
        name, has_value, value = word.partition("=")
        if has_value and (same := same_options(name.replace("_", "-"), self._names)):
            return f"; did you mean --{same[0]} {value}?"
        return f"; did you mean --env {word}?" if "env" in self._names and re.search(r"\w-v\d+$", word) else ""

    @property
    def _names(self) -> list[str]:
        """All options that --help shows, without their dashes."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [string[2:] for action in shown for string in action.option_strings if string.startswith("--")]


def whole_number(text: str) -> int:
    """Read 1000, 1_000 or 1e3; ArgumentTypeError for what is no whole number, or one of more than 64 bits."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    what = "a whole number such as 1000 or 1e3"
    if value.is_finite() and not SMALLEST <= value <= LARGEST:
        what = f"a whole number of at most 64 bits, {LARGEST}"
    elif value.is_finite() and value == int(value):
        return int(value)
    raise argparse.ArgumentTypeError(f"must be {what}, got {shortened(text, 80)!r}")


def number(text: str) -> float:
    """Read a number; ArgumentTypeError for what is none."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {shortened(text, 80)!r}") from None


def path(text: str) -> str:
    """Read the name of a file or folder: shells leave the ~ of --out=~/run.h5 as it is; ArgumentTypeError for none."""
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"must name a file or folder, got {text!r} (is a variable of the shell not set?)"
        )
    return os.path.expanduser(text)


def json_value(option: str, text: str) -> object:
    """Read the value of an option; UsageError if it is not JSON.  `RolloutConfig` says what it may be."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        example = f"{option} must be a JSON object such as '{{\"level\": 3}}'"
        raise UsageError(f"{example}, got {shortened(text)!r}: {error}") from error


JSON = {name: partial(json_value, flag(name)) for name in ("env_kwargs", "policy_kwargs")}
READERS = {**JSON, "store_infos": read_types, "out": path, "log_dir": path, "trace": path}


def add_option(parser: ParserOrGroup, field: Field[Any]) -> None:
    """Add one field of the configuration as an option."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    help_text = field.metadata["help"].replace("%", "%%")  # A lone % would be argparse's own.
    if isinstance(default, bool):
        action = "store_false" if default else "store_true"
        name = flag(f"no-{field.name}" if default else field.name)
        parser.add_argument(name, dest=field.name, default=default, help=help_text, action=action)
        return
    extra = {key: field.metadata[key] for key in ("choices", "metavar") if key in field.metadata}
    number_type = next((kind for kind in (int, float) if kind.__name__ in str(field.type)), str)
    extra |= {"dest": field.name, "default": default, "type": READERS.get(field.name, number_type)}
    if default not in (None, {}, ""):
        help_text += " (default: %(default)s)"
    parser.add_argument(flag(field.name), help=help_text, **extra)


def add_run_options(parser: ParserOrGroup, names: Sequence[str]) -> None:
    """Add these fields of the configuration as options, to a parser or a group of one."""
    for field in fields(RunOptions):
        if field.name in names:
            add_option(parser, field)
