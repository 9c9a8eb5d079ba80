"""A rank's table of services: which methods it finds, and which it does not."""

import math
import pickle

import numpy as np
import pytest
from single_rank import driver_of

from mpi_rollout.errors import Fault
from mpi_rollout.ranks.service import Services, public_methods


class Base:
    limit = 3

    def double(self, number: int) -> int:
        return 2 * number

    def _hidden(self) -> None: ...


class Doubling(Base):
    name = "doubling"
    call_back = math.sqrt  # No function of Python's: others cannot call it.

    @property
    def number(self) -> int:
        return 1

    @staticmethod
    def loose() -> None: ...


class Namesake(Base):
    name = "doubling"


def test_public_methods_are_functions_of_the_class_without_an_underscore():
    assert public_methods(Doubling()) == ["double"]


def test_a_method_is_found_by_the_names_under_which_it_is_sent():
    service = Doubling()
    services = Services([service])
    assert services.address(service.double) == ("doubling", "double")
    assert (
        services.call(("doubling", "double"), [4], {}) == services.call(("doubling", "double"), (), {"number": 4}) == 8
    )
    assert services[Doubling] is service is services[Base]


@pytest.mark.parametrize(
    "address", [("doubling", "_hidden"), ("doubling", "loose"), ("doubling", "__init__"), ("other", "double")]
)
def test_a_rank_calls_nothing_but_public_methods_of_its_services(address: tuple[str, str]):
    with pytest.raises(LookupError, match=f"no service with a public method {'.'.join(address)}, it has doubling$"):
        Services([Doubling()]).call(address, (), {})


def test_a_method_of_another_object_or_none_of_a_service_has_no_address():
    service = Doubling()
    services = Services([service])
    for method in (Doubling().double, service._hidden, service.loose, Doubling.double, len):
        with pytest.raises(TypeError, match="public methods of services only"):
            services.address(method)


def test_two_services_of_one_name_are_refused():
    service = Doubling()
    for other in (service, Namesake()):
        with pytest.raises(ValueError, match="each service of a rank must have its own name, got 'doubling' of"):
            Services([service, other])


def test_a_service_that_a_rank_does_not_have_is_not_found():
    with pytest.raises(LookupError, match="this rank has no service Namesake, it has doubling"):
        Services([Doubling()])[Namesake]


class Unloadable:
    """An argument that only the root can hold, as one of a module that other ranks lack."""

    def __reduce__(self) -> tuple[object, ...]:
        return (int, ("no number",))


def test_arguments_that_a_rank_cannot_load_are_a_fault_of_that_rank():
    service = Doubling()
    worker = driver_of(services=[service]).worker
    call = worker.services.address(service.double), (Unloadable(),), {}
    fault = pickle.loads(worker.call_pickled(np.frombuffer(pickle.dumps(call), np.uint8)))
    assert isinstance(fault, Fault) and "ValueError: invalid literal for int()" in str(fault.parts)
