"""C's `exit()`: libraries call it where they cannot go on, and no handler in Python hears of it.

A handler of C does.  It must be taken back before the interpreter ends, since it is in Python.
"""

import ctypes
from collections.abc import Callable

_libc = ctypes.CDLL(None)
_IS_GLIBC = hasattr(_libc, "gnu_get_libc_version")  # Other libraries cannot take a handler back.
_keep = _libc.__cxa_atexit if _IS_GLIBC else lambda *_: None
_call_and_forget = _libc.__cxa_finalize if _IS_GLIBC else lambda *_: None
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)  # glibc gives it the exit code as well.


class HeardExit:
    """A handler for C's `exit()`, which gets its code: from `begin` to `end`, or `with HeardExit(handler):`."""

    def __init__(self, handler: Callable[[int], None]):
        self._handler, self._is_on = handler, False
        self._name = ctypes.c_int()  # C's handler is taken back by its name, which is the address of this.
        self._of_c = _HANDLER(self._hear)

    def begin(self) -> None:
        self._is_on = True
        _keep(self._of_c, None, ctypes.byref(self._name))

    def end(self) -> None:
        self._is_on = False
        _call_and_forget(ctypes.byref(self._name))

    def _hear(self, _name: int, code: int) -> None:
        if self._is_on:
            self._handler(code)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()
