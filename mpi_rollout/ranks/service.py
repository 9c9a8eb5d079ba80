"""What the root calls on all ranks between two orders: services, and each rank's table of them.

This module knows no service.  Whoever makes a rank's worker says which ones it has.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind")
Address = tuple[str, str]  # The names of a service and of its method, as they are sent.


class Service(Protocol):
    """One object on every rank, whose public methods the root calls on all ranks at once.

    `mpi_rollout.testing.services.check_service` tries whether an object keeps what is written here.

    **What it is.**  `name` tells it from the other services of its rank, and does not change.  Its public methods are
    the functions of its class whose names have no underscore in front; they are all that others can call, and the
    service has at least one.  Properties, and attributes that are no functions, are the rank's own.

    **Lifetime.** Every rank makes its own object, of the same class, before its worker, and gives it to the
    worker's constructor; the worker itself makes those of the names `rank`, `envs` and `policy`.  All ranks have
    the same services.  A service lives as long as the worker, and is told of no end.

    **Who calls it, and when.**  `driver.call_ranks(service.method, *args, **kwargs)` on the root, with a bound method
    of the root's own object.  Then each rank, the root too, calls that method of its own object.  This happens between
    two orders: steps that are under way are taken first, and no env is being stepped.  All ranks get the same calls in
    the same order, one at a time; workers in their main thread, the root in the thread that calls.  So a method may use
    collective operations of MPI, if it does so whatever happens on its rank: others wait there for a rank that raises
    before.

    **Arguments and results.**  The arguments are pickled once, before anything is sent; TypeError on the root if that
    fails.  Workers get copies, and the root's method the caller's own objects: a method does not write into them, and
    copies what it keeps.  Each result is pickled on its rank, the root's too; the root gets all of them in rank order.

    **What a method may raise.**  Any exception; so may loading the arguments, and pickling the result.  It ends that
    call on that rank alone: the other ranks complete theirs.  Then the root raises the RankError of the first rank that
    failed, which says how many others have.  Envs and services stay as they are, and more calls may follow.  RankLost
    passes through: after it, some ranks may not have been called.

    **Signals.**  A first signal does not interrupt a method; what it asks for happens after the call.  So a method is
    short, or looks at the time.  A second signal may raise SignalInterrupt in it, which ends the job; in a call of a
    trainer's envs it ends that call alone.  A method lets pass what is no Exception.

    **What it costs.**  A call is two messages and takes pickling: it is for now and then, and not for each step.
    """

    @property
    def name(self) -> str: ...


def public_methods(service: Service) -> list[str]:
    """Return the names of the methods that others can call."""
    functions = inspect.getmembers_static(type(service), inspect.isfunction)
    return [name for name, _ in functions if not name.startswith("_")]


class Services:
    """The services of one rank.

    ValueError if two of them have the same name.
    """

    def __init__(self, services: Iterable[Service]) -> None:
        self._by_name: dict[str, Service] = {}
        for service in services:
            if service.name in self._by_name:
                kinds = [type(other).__name__ for other in (self._by_name[service.name], service)]
                raise ValueError(f"each service of a rank must have its own name, got {service.name!r} of {kinds}")
            self._by_name[service.name] = service
        self._methods: dict[Address, Callable[..., object]] = {
            (name, method): getattr(service, method)
            for name, service in self._by_name.items()
            for method in public_methods(service)
        }

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """Return the service of this class; LookupError if this rank has none."""
        for service in self._by_name.values():
            if isinstance(service, kind):
                return service
        raise LookupError(f"this rank has no service {kind.__name__}, it has {self}")

    def address(self, method: Callable[..., object]) -> Address:
        """Return under which names other ranks find a method; TypeError if it is none of a service of this rank."""
        for address, own in self._methods.items():
            if own == method:
                return address
        raise TypeError(f"all ranks can call public methods of services only, got {method!r}; the services are {self}")

    def call(self, address: Address, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Call a method; LookupError if this rank has none of that name."""
        if address not in self._methods:
            raise LookupError(f"this rank has no service with a public method {'.'.join(address)}, it has {self}")
        return self._methods[address](*args, **kwargs)

    def __str__(self) -> str:
        return ", ".join(self._by_name)
