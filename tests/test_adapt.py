from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from fedpace.adapt import adapt, default_property, original
from fedpace.errors import InputError


class Shape:
    """A base with a required hook, two defaults and an annotation."""

    name: str
    sides = 4

    def area(self) -> float:
        raise NotImplementedError

    def describe(self) -> str:
        return f"{self.sides} sides, area {self.area():g}"

    @property
    def colour(self) -> str:
        raise AttributeError("a plain shape has no colour; paint it")


class Own(Shape):
    def area(self) -> float:
        return 2.0


class Triangle:
    """Has the methods, is no subclass."""

    sides = 3

    def __init__(self, size: float = 1.0) -> None:
        self.size = size

    def area(self) -> float:
        return self.size / 2


def adapted(value: object) -> Any:
    return adapt(value, Shape, argument="shape", required=["area"])


def test_an_instance_is_returned_unchanged() -> None:
    own = Own()
    assert adapted(own) is own
    assert original(own) is own


def test_an_object_with_the_methods_gets_the_defaults_of_the_base() -> None:
    triangle = Triangle()
    shape = adapted(triangle)
    assert isinstance(shape, Shape)
    assert shape.describe() == "3 sides, area 0.5"
    assert original(shape) is triangle
    assert repr(shape) == repr(triangle)
    assert type(shape).__name__ == "Triangle"


def test_hooks_are_read_when_they_are_used() -> None:
    triangle = Triangle()
    shape = adapted(triangle)
    triangle.size = 4.0
    assert shape.area() == 2.0
    triangle.describe = lambda: "mine"  # type: ignore[attr-defined]
    assert shape.describe() == "mine"
    shape.sides = 5
    assert triangle.sides == 5


def test_other_attributes_stay_readable() -> None:
    shape = adapted(Triangle(3.0))
    assert shape.size == 3.0
    with pytest.raises(AttributeError, match="'Triangle' object has no attribute 'weight'"):
        _ = shape.weight
    assert not hasattr(shape, "__array__")


def test_attributes_found_dynamically_count() -> None:
    class Forwarding:
        def __getattr__(self, name: str) -> Any:
            return getattr(Triangle(), name)

    assert adapted(Forwarding()).describe() == "3 sides, area 0.5"


def test_the_text_of_a_default_that_raises_is_kept() -> None:
    with pytest.raises(AttributeError, match="paint it"):
        _ = adapted(Triangle()).colour


def test_an_error_inside_a_property_is_not_taken_for_a_missing_hook() -> None:
    class Broken(Triangle):
        @property
        def describe(self) -> str:
            return self.nothing  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="nothing"):
        _ = adapted(Broken()).describe


def test_adapting_twice_wraps_once() -> None:
    shape = adapted(Triangle())
    assert adapted(shape) is shape


@pytest.mark.parametrize("again", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_and_pickles_stay_adapted(again: Any) -> None:
    shape = again(adapted(Triangle(6.0)))
    assert isinstance(shape, Shape)
    assert shape.describe() == "3 sides, area 3"


def test_a_missing_required_hook_is_named() -> None:
    with pytest.raises(InputError, match=r"shape must define area, got .* without area; define it"):
        adapted(object())


def test_a_class_is_refused() -> None:
    with pytest.raises(InputError, match=r"got the class Triangle; give Triangle\(…\)"):
        adapted(Triangle)


@pytest.mark.parametrize("base", [Own, Triangle])
def test_a_misspelt_hook_is_named(base: type) -> None:
    value = type("Mine", (base,), {"descibe": lambda _: ""})()
    with pytest.raises(InputError, match="'descibe' of Mine; did you mean 'describe'"):
        adapted(value)
    value = type("Mine", (base,), {"descibe": staticmethod(lambda: ""), "describe": str})()
    adapted(value)  # it has the hook, so the other is its own affair


def test_a_misspelt_hook_of_an_instance_is_named() -> None:
    triangle = Triangle()
    triangle.descibe = lambda: ""  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="did you mean 'describe'"):
        adapted(triangle)


def test_private_methods_and_data_are_not_hooks() -> None:
    value = type("Mine", (Triangle,), {"_describe": len, "side": 1})()
    adapted(value)


def test_the_same_object_is_wrapped_once_while_the_wrapper_lives() -> None:
    triangle = Triangle()
    shape = adapted(triangle)
    assert adapted(triangle) is shape
    assert adapted(Triangle()) is not shape


def test_a_field_overrides_a_default_property() -> None:
    class Base:
        @default_property
        def count(self) -> int:
            """How many."""
            return 7

        @default_property
        def size(self) -> int:
            """How large."""
            raise AttributeError("no size")

    @dataclass(frozen=True)
    class Field(Base):
        size: int
        count: int

    assert Base().count == 7
    with pytest.raises(AttributeError, match="no size"):
        _ = Base().size
    with pytest.raises(AttributeError, match="for its instances only"):
        _ = Base.count
    assert Field(1, 2) == Field(size=1, count=2)
    with pytest.raises(TypeError, match="missing"):
        Field(1)  # type: ignore[call-arg]
