"""One call at a time: threads that share envs wait for each other, and none waits for ever while another calls on."""

from threading import Lock, get_ident

POLL_S = 0.05  # How often a waiting thread looks for signals.


class CallTurns:
    """Which thread's call of a connection is under way.

    A thread that finds a call under way waits for its end; two threads that call on and on take turns.

    Attributes
    ----------
    owner
        The thread whose call is under way, or 0.
    is_broken
        A call was cut in the middle of an exchange: nobody knows what the ranks wait for.
    """

    def __init__(self) -> None:
        self.busy, self._first = Lock(), Lock()
        self.owner = 0
        self.is_awaited = self.is_broken = False

    @property
    def is_of_another_thread(self) -> bool:
        """Whether a call of another thread is under way."""
        return self.owner not in (0, get_ident())

    def wait(self, timeout_s: float) -> bool:
        """Take the turn if the call that is under way ends in time; return whether it was taken: `busy` is then held.

        One of the threads that wait is next, whichever the lock lets in, until its time is over; the others wait
        `timeout_s` to become the next one, and then as long again.  While `is_awaited`, a thread that wants another
        call should wait here, and not take `busy` itself.
        """
        if not self._first.acquire(timeout=timeout_s):
            return False
        try:
            self.is_awaited = True
            return self.busy.acquire(timeout=timeout_s)
        finally:
            self.is_awaited = False
            self._first.release()
