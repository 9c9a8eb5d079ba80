"""The test of a `Service`: whether the root can call its methods on all ranks; see `ranks.service`."""

import pickle
from collections.abc import Iterable
from functools import partial
from typing import Any

from mpi_rollout.ranks.service import Service, Services, public_methods


def check_service(service: Service, calls: Iterable["partial[Any]"]) -> list[object]:
    """Try the contract of `Service` with an object of one; return the results of the calls, as the root gets them.

    Each call is made once, in order, as a rank makes it that gets the arguments from the root.  Where a method is
    collective, run this on all ranks at once, with the same calls; else one process is enough.  What only a job of
    several ranks shows, such as a rank that raises before others wait for it, is not tried.

    Parameters
    ----------
    service
        As a worker would get it.
    calls
        Calls of its methods as `functools.partial`, at least one of each public method.

    Raises
    ------
    AssertionError
        The object does not keep the contract; the message says what was expected.
    Exception
        Whatever a method raises: give calls that succeed.

    Examples
    --------
    >>> from functools import partial
    >>> from mpi_rollout.testing.services import check_service
    >>> class Greeter:
    ...     name = "greeter"
    ...
    ...     def greet(self, whom: str) -> str:
    ...         return f"hello, {whom}"
    >>> greeter = Greeter()
    >>> check_service(greeter, [partial(greeter.greet, "root")])
    ['hello, root']
    """
    name, methods = service.name, public_methods(service)
    kind = type(service).__name__
    assert isinstance(name, str) and name, f"the name of {kind} must be a string that is not empty, got {name!r}"
    assert methods, f"{kind} must have a public method, a function of its class without an underscore in front"
    table, called = Services([service]), set[str]()
    results = []
    for call in calls:
        address = table.address(call.func)
        called.add(address[1])
        results.append(_as_on_a_rank(table, call))
    missing = [method for method in methods if method not in called]
    assert not missing, f"a call of each public method of {kind} must be given, got none of {', '.join(missing)}"
    assert service.name == name, f"the name of {kind} must not change, got {service.name!r} after {name!r}"
    return results


def _as_on_a_rank(services: Services, call: "partial[Any]") -> object:
    """Make a call with copies of its arguments; return a copy of the result."""
    address = services.address(call.func)
    what = ".".join(address)
    args, kwargs = _copy((call.args, call.keywords), f"the arguments of {what}")
    before = pickle.dumps((args, kwargs))
    result = services.call(address, args, kwargs)
    assert pickle.dumps((args, kwargs)) == before, f"{what} must not write into its arguments: the root's are its own"
    return _copy(result, f"the result of {what}")


def _copy(value: Any, what: str) -> Any:
    try:
        return pickle.loads(pickle.dumps(value))
    except Exception as error:
        raise AssertionError(f"{what} must be picklable, got {value!r}: {error}") from error
