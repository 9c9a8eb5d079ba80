"""What user code raised keeps its class, also on other ranks, and its traceback begins where that code begins."""

import pickle
import sys
import traceback

import gymnasium
import pytest

from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.errors import (
    DataError,
    EnvError,
    Fault,
    Raised,
    RankError,
    RolloutError,
    UsageError,
    caused_by,
    without_our_frames,
)
from mpi_rollout.text import traceback_of


class Told(Exception):
    """Cannot be made of its `args`, nor be unpickled."""

    def __init__(self, what: str, code: int):
        super().__init__(what)
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[0]} with code {self.code}"


class Sealed(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("derive nothing from it")


def raised(error: BaseException) -> BaseException:
    """Return it as if user code had raised it."""
    try:
        raise error
    except BaseException:
        return error


def sent(error: BaseException) -> Exception:
    copy: Raised = pickle.loads(pickle.dumps(Raised.of(raised(error))))
    return copy.again()


KINDS = [Told("no licence", 3), KeyError("boom"), FileNotFoundError(2, "No such file", "here"), StopIteration(4)]
KINDS += [gymnasium.error.DeprecatedEnv("old"), UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"), ValueError()]


@pytest.mark.parametrize("error", KINDS, ids=lambda error: type(error).__name__)
def test_a_copy_from_another_rank_has_the_class_the_message_and_the_traceback(error: Exception):
    copy = sent(error)
    assert isinstance(copy, type(error)) and str(copy) == str(error)
    shown = "".join(traceback.format_exception(copy))
    assert shown.count(traceback.format_exception_only(error)[-1]) == 2 and "raise error" in shown


@pytest.mark.parametrize("error", [Sealed("hidden"), SyntaxError("bad"), SystemExit(3)], ids=str)
def test_of_a_class_that_cannot_be_derived_a_copy_has_name_and_message(error: BaseException):
    copy = sent(error)
    assert type(copy).__mro__[1:] == Exception.__mro__
    assert traceback.format_exception_only(copy)[0] == traceback.format_exception_only(error)[-1]


def test_a_copy_imports_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path):
    (tmp_path / "unheard.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    copy = Raised("unheard", "Error", "gone", "").again()
    assert traceback.format_exception_only(copy)[0] == "unheard.Error: gone\n" and "unheard" not in sys.modules


@pytest.mark.parametrize("error", KINDS, ids=lambda error: type(error).__name__)
def test_an_error_is_caught_by_the_class_of_its_cause_and_by_its_own(error: Exception):
    ours = UsageError("env Old-v0: it is old")
    ours.add_note("a note")
    caused = caused_by(ours, error)
    assert isinstance(caused, UsageError) and isinstance(caused, type(error)) and caused.__cause__ is error
    assert traceback.format_exception_only(caused) == traceback.format_exception_only(ours)
    assert (caused.args, caused.exit_code, caused.__notes__) == (ours.args, 64, ["a note"])


@pytest.mark.parametrize("cause", [None, SystemExit(3), Sealed("x"), SyntaxError("bad"), EnvError("ours")], ids=str)
def test_where_that_does_not_work_an_error_keeps_its_own_class(cause: BaseException | None):
    ours = EnvError("failed")
    assert caused_by(ours, cause) is ours and ours.__cause__ is cause


def test_a_rank_error_has_the_traceback_and_the_code_of_the_fault():
    fault = pickle.loads(pickle.dumps(Fault.of(raised(ValueError("too far")), "rank 1")))
    assert fault.raised is not None
    error = caused_by(RankError(fault, 3), fault.raised.again())
    assert isinstance(error, ValueError) and str(error) == "rank 1: ValueError: too far (2 more ranks failed too)"
    assert error.exit_code == 70 and error.stack == fault.stack and error.stack.endswith("ValueError: too far\n")


def too_old() -> gymnasium.Env:
    raise gymnasium.error.DeprecatedEnv("old")


def test_a_traceback_begins_below_our_own_frames():
    with pytest.raises(UsageError) as refused:
        EnvMaker(too_old)()
    cause = refused.value.__cause__
    assert cause is not None and frames_of(cause) == ["_try", "too_old"]
    assert frames_of(without_our_frames(cause)) == ["too_old"]


def test_a_failure_of_our_own_keeps_its_traceback():
    with pytest.raises(UsageError) as refused:
        EnvMaker(3).check(1)  # type: ignore[arg-type]
    error = refused.value
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # The first frame is of this test.
    assert frames_of(without_our_frames(error)) == ["check"]
    copy = Raised.of(without_our_frames(error, keeps_all=False)).again()
    assert frames_of(error) == [] and not hasattr(copy, "__notes__")


def frames_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("cause", [None, ValueError("no")])
@pytest.mark.parametrize("kind", [EnvError, DataError, UsageError])
def test_errors_travel_between_processes_as_their_own_class(kind: type[RolloutError], cause: Exception | None):
    again = pickle.loads(pickle.dumps(caused_by(kind("rank 1: ", "it fell"), cause)))
    assert type(again) is kind and str(again) == "rank 1: it fell"


def test_a_text_of_megabytes_is_cut_wherever_it_is_said_or_sent():
    """Also as a note, as a cause, and in the message of an error of this program."""
    long = "x" * 3_000_000
    error = ValueError(long)
    error.__cause__, error.__notes__ = KeyError(long), [long]
    fault = Fault.of(raised(error), "rank 1")
    said = RolloutError("rank 1: ", long)
    assert sum(map(len, (str(RankError(fault, 1)), fault.stack, fault.raised.message, str(said)))) < 100_000
    assert str(RankError(fault, 1)).endswith("(3,000,000 characters)")


def test_of_a_long_chain_of_errors_the_last_is_shown():
    error: Exception = ValueError("the first")
    for number in range(1000):
        error, error.__cause__ = RuntimeError(f"{number}" + "x" * 1000), error
    shown = traceback_of(error)
    assert len(shown) < 101_000 and "RuntimeError: 999xxx" in shown
