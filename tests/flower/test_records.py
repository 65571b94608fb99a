"""Arrays of any type become one vector and come back; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpace import Adam
from fedpace.backends.remote.screening import BadReplyError
from fedpace.errors import InputError
from fedpace.flower.messages import Layout
from fedpace.flower.replies import metric_named
from fedpace.servers.asynchronous import FedAsync
from fedpace.servers.build import server_for
from tests.flower.federation import START, grid_with, strategy_on

TYPES = st.sampled_from(["float16", "float32", "float64", "int8", "uint8", "int64", "bool"])


@st.composite
def records(draw: st.DrawFn) -> ArrayRecord:
    count = draw(st.integers(1, 4))
    arrays = []
    for _ in range(count):
        kind = np.dtype(draw(TYPES))
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
        elements = st.integers(0, 1) if kind.kind == "b" else st.integers(0, 100)
        arrays.append(draw(hnp.arrays(np.int64, shape, elements=elements)).astype(kind))
    return ArrayRecord(arrays)


@given(records())
def test_a_record_comes_back_as_it_was(record: ArrayRecord) -> None:
    layout = Layout.of(record)
    back = layout.record(layout.vector(record))
    assert list(back) == list(record)
    for name, array in record.items():
        value, again = array.numpy(), back[name].numpy()
        assert again.dtype == value.dtype
        assert again.shape == value.shape
        np.testing.assert_array_equal(again, value)


def test_floats_are_summed_exactly_and_counters_rounded() -> None:
    layout = Layout.of(ArrayRecord([np.array([1.0], np.float32), np.array(3), np.array([True])]))
    record = layout.record(np.array([0.1, 3.6, 0.4]))
    values = record.to_numpy_ndarrays()
    assert values[0][0] == np.float32(0.1)
    assert values[1] == 4
    assert not values[2][0]
    np.testing.assert_array_equal(layout.trained, [True, False, False])


def test_buffers_are_told_from_parameters_by_type_and_name() -> None:
    arrays = {"0.weight": np.zeros(2), "1.running_var": np.ones(1), "1.running_mean": np.zeros(1)}
    counter = {"1.num_batches_tracked": np.array(4)}
    layout = Layout.of(
        ArrayRecord({name: Array(each) for name, each in (arrays | counter).items()})
    )
    np.testing.assert_array_equal(layout.trained, [True, True, False, False, False])
    np.testing.assert_array_equal(layout.floats, [True, True, True, True, False])


def test_a_number_beyond_the_type_becomes_infinite_without_a_warning() -> None:
    (value,) = (
        Layout.of(ArrayRecord([np.zeros(1, np.float32)]))
        .record(np.array([1e39]))
        .to_numpy_ndarrays()
    )
    assert np.isinf(value)


@pytest.mark.parametrize(("kind", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255)])
def test_a_counter_stays_within_its_type(kind: str, low: int, high: int) -> None:
    layout = Layout.of(ArrayRecord([np.zeros(2, kind)]))
    (value,) = layout.record(np.array([-1e30, 1e30])).to_numpy_ndarrays()
    np.testing.assert_array_equal(value, [low, high])


def test_the_widest_integers_stay_within_their_type() -> None:
    layout = Layout.of(ArrayRecord([np.zeros(2, np.int64)]))
    (value,) = layout.record(np.array([-1e30, 1e30])).to_numpy_ndarrays()
    assert value[0] == -(2**63)
    assert value[1] > 2**62


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([1j]), "numbers, got complex128 for '0'"),
        (np.array(["a"]), "numbers"),
        (np.array([np.nan]), "finite"),
        (np.empty(0), "hold a number"),
    ],
)
def test_a_model_that_cannot_be_averaged_is_refused(array: np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Layout.of(ArrayRecord([array]))


def wrong_bytes() -> Array:
    array = Array(np.zeros((2, 3)))
    return Array(array.dtype, array.shape, array.stype, b"\x93NUMPY" + array.data[6:100])


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (Array(np.zeros((3, 2))), "shape"),
        (Array(np.zeros((2, 3), dtype=np.int64)), "type int64, not float64"),
        (Array(np.zeros((2, 3), dtype=complex)), "type complex128"),
        (Array(np.zeros((200, 300))), "bytes, too many"),
        (Array("float64", (2, 3), "numpy.ndarray", b""), "too few"),
        (Array("float64", (2, 3), "numpy.ndarray", b"no array at all"), "cannot be read"),
        (Array("float64", (2, 3), "torch.save", bytes(48)), "cannot be read"),
        (wrong_bytes(), "cannot be read"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array: Array, said: str) -> None:
    layout = Layout.of(ArrayRecord([np.zeros((2, 3))]))
    with pytest.raises(BadReplyError, match=said):
        layout.vector(ArrayRecord({"0": array}))


def test_other_names_are_refused() -> None:
    layout = Layout.of(ArrayRecord([np.zeros(2)]))
    with pytest.raises(BadReplyError, match="named"):
        layout.vector(ArrayRecord([np.zeros(2), np.zeros(2)]))


def test_the_exact_name_of_a_metric_comes_before_one_that_contains_it() -> None:
    record = MetricRecord({"eval_loss": 2.0, "loss": 1.0, "history": [1.0]})
    assert metric_named([record], "loss") == 1.0
    assert np.isnan(metric_named([record], "acc"))
    assert np.isnan(metric_named([], "loss"))


def test_a_record_without_a_metric_is_passed_over() -> None:
    records = [MetricRecord({"accuracy": 0.5, "loss": np.nan}), MetricRecord({"eval_loss": 2.0})]
    assert metric_named(records, "loss") == 2.0
    assert metric_named(records, "acc") == 0.5


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(7),
        np.array([True, False]),
        np.empty((0, 4)),
        np.arange(8.0)[::2],
    ],
)
def test_arrays_are_packed_as_flower_does(values: np.ndarray) -> None:
    layout = Layout(("x",), (values.shape,), (values.dtype,))
    record = layout.record(values.ravel().astype(np.float64))
    np.testing.assert_array_equal(record["x"].numpy(), values)
    theirs = ArrayRecord({"x": Array(values)})
    (part,) = layout.opened(theirs)
    np.testing.assert_array_equal(part, values.ravel())
    assert part.dtype == values.dtype


def test_arrays_are_opened_without_a_copy() -> None:
    data = Array(np.arange(9, dtype=np.float32))
    (part,) = Layout(("x",), ((9,),), (np.dtype(np.float32),)).opened(ArrayRecord({"x": data}))
    assert np.shares_memory(part, np.frombuffer(data.data, np.uint8))


@pytest.mark.parametrize(
    ("mode", "server"),
    [
        *(("synchronous", server_for(name)) for name in ("average", "memory", "trimmed", "krum:1")),
        *(("asynchronous", each) for each in (server_for("memory"), Adam(0.1), FedAsync())),
    ],
)
def test_a_model_too_large_for_a_matrix_trains_as_others(
    mode: str, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> Any:
        grid = grid_with()
        strategy = strategy_on(grid, k=3, scheme="pace", mode=mode, server=server)
        found = strategy.start(grid, START, num_rounds=12)
        return strategy.history.rows, Layout.of(START).vector(found.arrays)

    rows, model = trained()
    for module in ("fedpace.backends.remote.replies", "fedpace.flower.backend"):
        monkeypatch.setattr(f"{module}.SMALL", 0)
    for _ in range(2):
        others, other = trained()
        assert [row.clients.tolist() for row in others] == [row.clients.tolist() for row in rows]
        np.testing.assert_allclose(other, model, rtol=1e-5, atol=1e-6)
        monkeypatch.setattr("fedpace.training.updates.BLOCK", 64)
