"""Names of a package that are imported when they are first used, so that importing the package stays fast (PEP 562)."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy(package: str, exports: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that exports names of modules: module -> names.

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
