"""What only Numba's backend has: compiling, and its cache."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.any_mpi, pytest.mark.skipif(find_spec("numba") is None, reason="pip install numba")]


def test_what_was_compiled_is_loaded_until_the_dynamics_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import numba

    from mpi_rollout.envs.kernels import numba_cpu

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    num_loaded = []
    for dynamics in ("GRAVITY = 9.8", "GRAVITY = 9.8", "GRAVITY = 1.6"):
        monkeypatch.setattr(numba_cpu, "getsource", lambda module, source=dynamics: source)
        stats = numba_cpu.compiled_kernel.__wrapped__().stats
        assert str(tmp_path) in stats.cache_path
        num_loaded.append(sum(stats.cache_hits.values()))
    assert num_loaded == [0, 1, 0]


def test_others_wait_while_the_first_one_compiles(tmp_path: Path):
    from mpi_rollout.envs.kernels.numba_cpu import _first_compiles

    compiled = threading.Event()

    def load() -> None:
        with _first_compiles(tmp_path):
            assert compiled.is_set()

    with ThreadPoolExecutor(2) as pool:
        with _first_compiles(tmp_path):
            loads = [pool.submit(load) for _ in range(2)]
            wait(loads, timeout=0.3)
            compiled.set()
        for one in loads:
            one.result()


@pytest.mark.parametrize("error", [OSError("no space left"), RuntimeError("no locator available"), RuntimeError("bad")])
def test_without_a_writable_cache_each_process_compiles(monkeypatch: pytest.MonkeyPatch, error: Exception):
    from mpi_rollout.envs.kernels import numba_cpu

    def njit(*_signature: object, cache: bool = False, **_options: object) -> Callable[[object], str]:
        if cache:
            raise error
        return lambda function: "compiled"

    monkeypatch.setattr(numba_cpu, "njit", njit)
    compile_again = numba_cpu.compiled_kernel.__wrapped__
    if "bad" in str(error):
        with pytest.raises(RuntimeError, match="bad"):
            compile_again()
    else:
        assert compile_again() == "compiled"
