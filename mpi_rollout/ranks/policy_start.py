"""The start of a policy on the ranks: each has it, and all have it with the same parameters."""

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.blocks import PolicyOptions
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.parameters import Layout, packed
from mpi_rollout.ranks.driver import Driver


def start_policy(driver: Driver, source: PolicySource | None, options: PolicyOptions, actions: str) -> Layout | None:
    """Have all ranks use a policy; return what parameters it has, None if they cannot be set.

    Each rank may have made it with random numbers of its own.  Then all get the parameters of the root's.

    Parameters
    ----------
    source
        Where ranks load it from; None is what each has made.
    actions
        The mode in which its actions are read, see `action_check.ActionReader`.

    Raises
    ------
    UsageError
        The ranks have made policies with parameters of other names, dtypes or shapes.
    RankError
        A rank cannot load it.
    """
    driver.call_ranks("use_policy", source, options, actions)
    is_compared = source is None and driver.exchanges.division.num_ranks > 1
    told = [facts for facts in driver.call_ranks("parameter_facts", is_compared) if facts is not None]
    if not told:
        return None
    layout: Layout = told[0].layout
    if any(facts.layout != layout for facts in told):
        raise UsageError(
            "make_policy gave parameters of other names, dtypes or shapes on some ranks than on others; have it make "
            "the same policy everywhere"
        )
    model = driver.worker.policies.model
    if len({facts.sha256 for facts in told}) > 1 and model is not None:
        driver.call_ranks("load_parameters", packed(model.parameters() or {}, layout))
    return layout
