"""What is imported when it is first used, so that importing a package, and a command that does without it, stays fast."""

import atexit
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def importing() -> Iterator[None]:
    """Around code that imports torch or another large package. Imports allocate much and leave no garbage: looking for some takes a sixth
    of the time of a short run, so it is not done, neither meanwhile nor later among what was imported."""
    collecting, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            if not gc.get_freeze_count():
                atexit.register(gc.unfreeze)  # libraries look at the end whether something of theirs is left
            gc.freeze()
        if collecting:
            gc.enable()


def lazy(package: str, exports: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) that exports names of modules: module -> names.

    >>> find = lazy("numbers_of_mine", {"fractions": ["Fraction"]})
    >>> find("Fraction")
    <class 'fractions.Fraction'>
    """
    module_of = {name: module for module, names in exports.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return __getattr__
