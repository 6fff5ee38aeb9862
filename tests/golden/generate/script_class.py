"""Classes that look as if a script had defined them."""

from __future__ import annotations

import sys
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def of_a_script(cls: Class) -> Class:
    """Gives a class the name that it has in a script of users.

    TorchScript and pickle write a class's module into their files; most users'
    classes are of no module, but of __main__.
    """
    cls.__module__ = "__main__"
    setattr(sys.modules["__main__"], cls.__name__, cls)
    return cls
