"""Accept objects that have the right methods but do not subclass our base class."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from fedpace.errors import InputError, join_names

Base = TypeVar("Base")
# Names at least this similar (difflib's ratio) count as a misspelling.
NEAR_MISS = 0.85
_MISSING = object()
# Wrappers in use, so that adapting an object again gives the same wrapper.
_wrappers: WeakValueDictionary[tuple[int, type], Any] = WeakValueDictionary()

if TYPE_CHECKING:
    default_property = property
else:

    class default_property:  # noqa: N801 - a decorator, as `property`
        """A property of a base class that a plain attribute or dataclass field may override."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.__doc__ = function.__doc__
            self._function = function

        def __get__(self, instance: object, owner: type) -> Any:
            """Return the default; the class itself has none, which dataclasses look for."""
            if instance is None:
                raise AttributeError(f"{owner.__name__} declares it for its instances only")
            return self._function(instance)


def adapt(value: object, base: type[Base], *, argument: str, required: Iterable[str] = ()) -> Base:
    """Return `value` as an instance of `base`.

    An instance of `base` is returned unchanged. Any other object is wrapped in a subclass of
    `base`: hooks that the object has are read from it at access time, all others have the default
    of `base`. Other attributes of the object stay readable, and pickling keeps the wrapper.

    Parameters
    ----------
    value : object
        An instance of `base`, or an object with the same methods and attributes.
    base : type
        The class that declares all hooks, as methods, attributes or annotations.
    argument : str
        How error messages name the value.
    required : names
        Hooks that an object which does not subclass `base` must have.

    Raises
    ------
    InputError
        If a required hook is missing, if a method looks like a misspelt hook, or if `value` is a
        class instead of an object.

    Examples
    --------
    >>> class Shape:
    ...     sides = 4
    ...     def area(self): raise NotImplementedError
    ...     def describe(self): return f"{self.sides} sides, area {self.area()}"
    >>> class Triangle:
    ...     sides = 3
    ...     def area(self): return 0.5
    >>> adapt(Triangle(), Shape, argument="shape", required=["area"]).describe()
    '3 sides, area 0.5'
    """
    if isinstance(value, type):
        got = f"the class {value.__name__}; give {value.__name__}(…)"
        raise InputError(f"{argument} must be an object, got {got}")
    own = isinstance(value, base)
    missing = [] if own else [name for name in required if not defines(value, base, name)]
    refuse_misspelt(value, base, argument=argument)
    if missing:
        got = f"{type(value).__name__} without {join_names(missing)}"
        remedy = f"define {'it' if len(missing) == 1 else 'them'}, or subclass {base.__name__}"
        raise InputError(f"{argument} must define {join_names(required)}, got {got}; {remedy}")
    return value if own else _wrap(value, base)  # type: ignore[return-value]


def optional(value: object, name: str, default: Any = None) -> Any:
    """Return an attribute that a user's function or object may have, else the default."""
    return getattr(value, name, default)


def original(value: object) -> object:
    """Return the object that `adapt` wrapped, or `value` itself."""
    return vars(value)["_adapted"] if isinstance(value, _Adapted) else value


def refuse_misspelt(value: object, base: type, *, argument: str) -> None:
    """Raise InputError if a method's name is nearly that of a hook which is not defined."""
    own = (name for name, each in getattr(value, "__dict__", {}).items() if callable(each))
    kind: type = type(value)
    for name, hook in _near_misses(_methods(kind), base) + _near_misses(frozenset(own), base):
        if not defines(value, base, hook):
            got = f"'{name}' of {kind.__name__}; did you mean '{hook}'?"
            raise InputError(f"{argument} must spell hooks correctly, got {got}")


class _Adapted:
    """Marks wrappers; their subclasses read every hook through a property."""

    def __getattr__(self, name: str) -> Any:
        # Reached for attributes that are no hooks, and for hooks that raised AttributeError.
        if name.startswith("__"):
            raise AttributeError(name)
        return _read(self, name)

    def __repr__(self) -> str:
        return repr(original(self))

    def __reduce__(self) -> Any:
        return _wrap, (original(self), type(self).__mro__[2])


def _wrap(value: object, base: type) -> Any:
    # The wrapper keeps its value alive, so no other object has this id while it is found here.
    wrapper: Any = _wrappers.get((id(value), base))
    if wrapper is None:
        wrapper = object.__new__(_wrapper(type(value).__name__, base))
        vars(wrapper)["_adapted"] = value  # not setattr, which a frozen base refuses
        _wrappers[id(value), base] = wrapper
    return wrapper


@lru_cache(maxsize=256)
def _wrapper(name: str, base: type) -> type:
    hooks = {
        hook: property(partial(_read, name=hook), partial(_write, hook)) for hook in _hooks(base)
    }
    return type(name, (_Adapted, base), hooks)


def _read(wrapper: Any, name: str) -> Any:
    value = vars(wrapper)["_adapted"]
    try:
        return getattr(value, name)
    except AttributeError:
        # An error inside the object's own property is not a missing hook.
        if inspect.getattr_static(value, name, _MISSING) is not _MISSING:
            raise
    base = type(wrapper).__mro__[2]
    if name not in _hooks(base):
        raise AttributeError(f"'{type(value).__name__}' object has no attribute '{name}'")
    return getattr(super(_Adapted, wrapper), name)


def _write(name: str, wrapper: Any, value: Any) -> None:
    setattr(original(wrapper), name, value)


@lru_cache(maxsize=256)
def _hooks(base: type) -> frozenset[str]:
    """Return the public names that a class declares, those that are only annotated included."""
    annotated = {name for each in base.__mro__ for name in inspect.get_annotations(each)}
    return frozenset(name for name in {*dir(base), *annotated} if not name.startswith("_"))


@lru_cache(maxsize=256)
def _near_misses(names: frozenset[str], base: type) -> list[tuple[str, str]]:
    hooks = _hooks(base)
    unknown = sorted(name for name in names - hooks if not name.startswith("_"))
    return [
        (name, hook)
        for name in unknown
        for hook in difflib.get_close_matches(name, hooks, cutoff=NEAR_MISS)
    ]


@lru_cache(maxsize=256)
def _methods(kind: type) -> frozenset[str]:
    found = ((name, inspect.getattr_static(kind, name, None)) for name in dir(kind))
    wrapped = (staticmethod, classmethod)
    return frozenset(name for name, each in found if callable(each) or isinstance(each, wrapped))


def defines(value: object, base: type, name: str) -> bool:
    """Return whether an object has a hook of its own, not merely the default of `base`."""
    if not isinstance(value, base):
        return hasattr(value, name)
    static = inspect.getattr_static(value, name, _MISSING)
    return static is not _MISSING and static is not inspect.getattr_static(base, name, _MISSING)
