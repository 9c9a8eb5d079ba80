"""The directive `program-options COMMAND`: the options of a command, from the program's own parser.

Help texts and defaults stand in `mpi_rollout.options` and where commands are added, and nowhere else.
"""

import argparse
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mpi_rollout.cli import make_parser
from mpi_rollout.parser import Parser

DEFAULT = re.compile(r" \(default: (?P<value>.*)\)$")
OPTION = r"--[a-z][a-z-]*[a-z]"


def parser_of(command: str) -> Parser:
    """Find the parser of a command, such as `scaling strong`."""
    parser = make_parser()
    for word in command.split():
        parser = parser.commands[word]
    return parser


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what the command takes, but not `--help` and what is hidden."""
    for action in parser._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS and not _has_commands(action):
            yield action


def _has_commands(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


class ProgramOptions(SphinxDirective):
    """A definition list for each group of options: each with its value, what it does, and its default."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command = self.arguments[0]
        parser, content = parser_of(command), []
        actions, groups = [*actions_of(parser)], parser._action_groups
        for place, group in enumerate(groups):
            inside = [action for action in actions if action in group._group_actions]
            if inside and place > 1:  # The first two are argparse's own.
                title = f"{group.title[:1].upper()}{group.title[1:]}"
                content.append(nodes.rubric("", title))
            if inside:
                content.append(
                    nodes.definition_list("", *(self._item(command, each) for each in inside), classes=["option"])
                )
        return content

    def _item(self, command: str, action: argparse.Action) -> nodes.Node:
        help_text = ((action.help or "") % vars(action)).strip()
        default = DEFAULT.search(help_text)
        name = "-".join([*command.split(), action.dest.replace("_", "-")])
        term = nodes.term("", "", nodes.literal("", _spelling(action)), ids=[name])
        text = nodes.paragraph("", "", *_with_code(_sentence(DEFAULT.sub("", help_text), action), action))
        if default is not None:
            text += [nodes.Text(" Default: "), _code(default["value"]), nodes.Text(".")]
        return nodes.definition_list_item("", term, nodes.definition("", text))


def _spelling(action: argparse.Action) -> str:
    """Write an option as the user types it, with the place of its value."""
    name = ", ".join(action.option_strings)
    value = "" if action.nargs == 0 else _value(action)
    return f"{name} {value}".strip()


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    if action.metavar is not None:
        return f"{action.metavar} ..." if action.nargs == "+" else str(action.metavar)
    return "X" if action.type is float else "N" if action.type is int else action.dest.upper()


def _sentence(text: str, action: argparse.Action) -> str:
    """Begin with a capital letter, but for a word that the user types, and end with a full stop."""
    first = re.match(r"\w*", text)[0]
    return (text if first in _typed(action) else f"{text[:1].upper()}{text[1:]}") + ("" if text.endswith(".") else ".")


def _typed(action: argparse.Action) -> list[str]:
    """The values that the user types as words."""
    default = [action.default] if isinstance(action.default, str) and action.default else []
    return [*map(str, action.choices or ()), *default]


def _with_code(text: str, action: argparse.Action) -> Iterator[nodes.Node]:
    """Yield a text, with options and their values in it as code."""
    words = "|".join(rf"\b{re.escape(word)}\b" for word in _typed(action))
    for place, piece in enumerate(re.split(f"({OPTION}|{words})" if words else f"({OPTION})", text)):
        yield _code(piece) if place % 2 else nodes.Text(piece)


def _code(text: str) -> nodes.Node:
    return nodes.literal("", text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of the directive."""
    app.add_directive("program-options", ProgramOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
