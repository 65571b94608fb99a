"""Find objects by name: registered ones, those of installed packages, and those of a user."""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpace.errors import InputError, nearest

# The text of files that are not on this machine, by their names.
_sources: dict[str, str] = {}
# Objects of a script, by the names that stand for them.
GIVEN = "given:"
_given: dict[str, Any] = {}


def find(name: object, known: Mapping[str, Any], *, argument: str, group: str) -> Any:
    """Return the object of a name; errors begin with the `argument` that it is for.

    The name is one of `known`, an entry point of an installed package in `group`, or `module:name`
    or `file.py:name` for your own.

    >>> find("one", {"one": 1}, argument="number", group="fedpace.numbers")
    1
    >>> find("math:cos", {}, argument="number", group="fedpace.numbers")(0)
    1.0
    """
    if not isinstance(name, str):
        raise InputError(f"{argument} must be a name, got {name!r:.60}; {nearest('', known)}")
    if name in known:
        return known[name]
    if name.startswith(GIVEN):
        if name not in _given:
            problem = f"{argument} must be given by the script that made it, got '{name}'"
            raise InputError(f"{problem}; run that script again")
        return _given[name]
    place, colon, attribute = name.rpartition(":")
    entries = {} if colon else {entry.name: entry for entry in entry_points(group=group)}
    if name in entries:
        place, attribute = entries[name].module, entries[name].attr
    elif not colon:
        raise InputError(
            f"{argument} must be a known name, module:name or file.py:name, got '{name}'; "
            f"{nearest(name, [*known, *entries])}"
        )
    module = _module(place, name, argument, known)
    try:
        return getattr(module, attribute)
    except AttributeError:
        there = [each for each in vars(module) if not each.startswith("_")]
        got = f"'{name}'; {nearest(attribute, there)}"
        raise InputError(f"{argument} must be defined in its module, got {got}") from None


def read_sources(names: Iterable[str]) -> dict[str, str]:
    """Return the text of the files that these names refer to, for another machine."""
    return {file: _text(file, file, "file") for name in names if (file := _file(name))}


def provide_sources(texts: Mapping[str, str]) -> None:
    """Use these texts instead of files that this machine may not have."""
    _sources.update(texts)


def register_objects(objects: Mapping[str, Any]) -> None:
    """Let these names, which begin with "given:", stand for objects in this process."""
    _given.update(objects)


def registered_objects(names: Iterable[object]) -> dict[str, Any]:
    """Return the objects of a script that these names stand for."""
    return {name: _given[name] for name in names if isinstance(name, str) and name in _given}


def label(given: object, known: Mapping[str, Any] | None = None) -> str:
    """Return the name of an object: among the `known`, its own, or its repr; a name unchanged.

    >>> label("file.py:mine"), label(len), label([len]), label(1, {"one": 1})
    ('file.py:mine', 'len', '[<built-in function len>]', 'one')
    """
    if isinstance(given, str):
        return given
    for name, value in (known or {}).items():
        if value is given:
            return name
    if hasattr(given, "__name__"):
        return str(given.__name__)
    plain = type(given).__repr__ is object.__repr__
    return type(given).__name__ if plain else re.sub(" at 0x[0-9a-fA-F]+", "", repr(given))


def fingerprint(given: object) -> str | None:
    """Return a hash of the file of a name, or of the source of an object's function or class.

    None for a name without a file, and for an object without source.
    """
    if isinstance(given, str):
        file = _file(given)
        return None if file is None else _hash(_text(file, given, "file"))
    try:
        source: Any = given if hasattr(given, "__name__") else type(given)
        return _hash(inspect.getsource(source))
    except (OSError, TypeError):
        return None


def _file(name: str) -> str | None:
    place = name.rpartition(":")[0]
    return place if place.endswith(".py") else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(file: str, name: str, argument: str) -> str:
    if file in _sources:
        return _sources[file]
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{argument} must be in a file that can be read, got '{name}': {reason}; give its path"
        ) from None


def _module(place: str, name: str, argument: str, known: Iterable[str]) -> ModuleType:
    """Import a module by its name, or a file by its path."""
    is_file = place.endswith(".py")
    text = _text(place, name, argument) if is_file else ""
    try:
        with _importable(Path(place).parent if is_file else Path()):
            return _run(place, text) if is_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:  # of a user's file
        absent = isinstance(error, ModuleNotFoundError) and error.name == place
        close = difflib.get_close_matches(place, known, n=1) if absent else []  # as in adan:0.1
        remedy = f"did you mean '{close[0]}'?" if close else "correct it, or give another"
        raise InputError(
            f"{argument} must be in a module that can be imported, got '{name}': "
            f"{_where(error)}{_reason(error)}; {remedy}"
        ) from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules in this folder be imported, as for a script."""
    before, sys.path[:] = sys.path[:], [str(folder.resolve()), *sys.path]
    try:
        yield
    finally:
        sys.path[:] = before


def _run(file: str, text: str) -> ModuleType:
    """Run a file's text as a module; the same text is not run again."""
    name = f"fedpace_own_{_hash(file + text)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # dataclasses look for it there
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _reason(error: BaseException) -> str:
    """Return type and message of an error, on one line."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}"


def _where(error: BaseException) -> str:
    """Return file and line of an error, if it has one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
