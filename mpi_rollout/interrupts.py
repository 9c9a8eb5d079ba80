"""Ctrl-C amid an exchange: it waits until the exchange is whole, since half of one would leave the ranks hanging."""

import signal
import threading
from typing import Any


class Interrupts:
    """A guard around exchanges: `with interrupts:`.  KeyboardInterrupt comes at its end, or at once the second time.

    Attributes
    ----------
    is_broken
        An exchange was left half done after all: nobody knows what the ranks wait for.
    """

    def __init__(self):
        self.is_broken = False
        self._is_inside = self._is_asked = False
        self._before: Any = None

    def watch(self) -> None:
        """Be what SIGINT calls, where Python's own handler is that now."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._ask)

    def unwatch(self) -> None:
        """Leave SIGINT to who had it before."""
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._ask:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, _number: int, _frame: Any) -> None:
        if self._is_asked or not self._is_inside:
            raise KeyboardInterrupt
        self._is_asked = True

    def __enter__(self) -> None:
        self._is_inside = True

    def __exit__(self, kind: type | None, *_: Any) -> None:
        self._is_inside = False
        self.is_broken |= kind is not None and not issubclass(kind, Exception)
        if self._is_asked:
            self._is_asked = False
            raise KeyboardInterrupt
