"""Positions of clients, whatever their numbers are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpace.training.updates import places_of

NUMBERS = st.lists(st.integers(-1, 12) | st.integers(2**31, 2**62), max_size=8)


@given(clients=NUMBERS, known=NUMBERS)
def test_places_are_those_of_a_search_one_by_one(clients: list[int], known: list[int]) -> None:
    wanted = [
        max((i for i, each in enumerate(known) if each == one), default=-1) for one in clients
    ]
    places = places_of(np.array(clients, dtype=int), np.array(known, dtype=int))
    assert places.tolist() == wanted
