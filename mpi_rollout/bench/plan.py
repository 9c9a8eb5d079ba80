"""The jobs of a study: in which order, and with which options."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from mpi_rollout.config import RolloutConfig, flag, switch


def in_order(kinds: Sequence[Any], repeats: int, seed: int) -> list[tuple[int, Any]]:
    """Repeats and kinds of all jobs, repeat by repeat; the kinds in another random order in each.

    So a machine that gets slower meanwhile slows all kinds alike.
    """
    rng = np.random.default_rng(seed)
    return [(repeat, kinds[place]) for repeat in range(repeats) for place in rng.permutation(len(kinds)).tolist()]


def arguments_of(config: RolloutConfig) -> list[str]:
    """The options that give this configuration: the command line read backwards."""
    arguments = []
    for each in fields(config):
        default = each.default_factory() if each.default is MISSING else each.default
        value = getattr(config, each.name)
        if value == default:
            continue
        if isinstance(default, bool):
            arguments.append(switch(each.name))
        else:
            arguments.append(f"{flag(each.name)}={_written(value)}")  # One word: values may begin with a dash.
    return arguments


def _written(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
