"""Showing and tracking must not harm a run: what goes wrong there is said once, and the run goes on without it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from l2d.errors import drop_output, notify


class Harmless:
    """Forwards method calls to an object. Its first error ends the forwarding; later calls do nothing and return None."""

    def __init__(self, target: Any, what: str):
        self._target, self._what, self._failed = target, what, False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._target, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._failed:
                return None
            try:
                return method(*args, **kwargs)
            except Exception as error:
                self._fail(error)
                return None

        return call

    def _fail(self, error: Exception) -> None:
        self._failed = True
        if isinstance(error, OSError):
            drop_output()
        with suppress(Exception):  # a display that refreshes in a thread of its own has to end
            getattr(self._target, "stop", lambda: None)()
        notify(f"{self._what} failed ({error or type(error).__name__}); the run goes on without it.")
