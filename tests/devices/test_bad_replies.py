"""One device of seven sends what it should not; the others go on."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedpace.devices.backend import DeviceBackend
from fedpace.devices.devices_pb2 import Said
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import LONGEST, PART, Received, encode
from fedpace.samplers.solve import Solve
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from fedpace.training.training import Outcome
from tests.devices.fakes import Fake, Line, honest
from tests.devices.fleet import MODEL, evaluated, present, run, until

N = 7
BAD = 2
OTHERS = [client for client in range(N) if client != BAD]
NAN, INFINITY = (np.full(MODEL.size, value, dtype=np.float32) for value in (np.nan, np.inf))


@pytest.fixture
def server() -> Iterator[DeviceServer]:
    with DeviceServer([f"device-{i}" for i in range(N)]) as server:
        yield server


def fleet(server: DeviceServer, answer: Any, least: int = N) -> DeviceBackend:
    port = server.address[1]
    for client in OTHERS:
        Fake(port, client)
    Fake(port, BAD, answer)
    devices = DeviceBackend(
        server, MODEL, Seeds(0), deadline=300.0, patience=300.0, grace=0.0, least=least
    )
    devices.prepare({})
    return devices


def lying(**changes: Any) -> Any:
    """Answer honestly in the first round and with changes afterwards."""

    def answer(asked: Received) -> list[bytes]:
        if asked.kind == "train" and asked.fields.round > 0:
            return honest(BAD, asked, **changes)
        return honest(BAD, asked)

    return answer


REFUSED = {
    "nan": ({"floats": NAN}, "update"),
    "infinity": ({"floats": INFINITY}, "update"),
    "too_short": ({"floats": np.zeros(3, dtype=np.float32)}, "update"),
    "empty": ({"floats": np.zeros(0, dtype=np.float32)}, "update"),
    "thousandfold": ({"floats": np.full(MODEL.size, 1e6, dtype=np.float32)}, "update"),
    "ten_times_the_size": ({"floats": np.zeros(10 * MODEL.size, dtype=np.float32)}, "protocol"),
    "numbers_of_8_bytes": ({"numbers": np.zeros(MODEL.size).tobytes()}, "protocol"),
    "part_of_a_number": ({"numbers": bytes(4 * MODEL.size - 1)}, "protocol"),
    "another_round": ({"task": 1}, "another round"),
    "negative_norm": ({"grad_norm": -1.0}, "gradient norm"),
    "norm_that_is_no_number": ({"grad_norm": np.nan}, "gradient norm"),
    "no_loss": ({"loss": None}, "loss"),
    "loss_that_is_no_number": ({"loss": np.nan}, "loss"),
    "seconds_that_are_no_number": ({"computing_seconds": np.inf}, "seconds"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_refuses_and_counts_a_bad_reply_and_keeps_the_others(
    server: DeviceServer, changes: dict[str, Any], reason: str
) -> None:
    devices = fleet(server, lying(**changes))
    assert run(devices, 0).clients.tolist() == list(range(N))
    reply = run(devices, 1)
    assert reply.clients.tolist() == OTHERS
    assert reply.refused.tolist() == [BAD]
    np.testing.assert_allclose(reply.updates, 0.01)
    assert devices.refusals == {(BAD, reason): 1}


@pytest.mark.parametrize("samples", [-5, 0, 10**18])
def test_does_not_let_in_a_device_whose_sample_count_is_none(
    server: DeviceServer, samples: int
) -> None:
    devices = fleet(server, lambda asked: honest(BAD, asked, samples=samples), least=N - 1)
    until(lambda: devices.refusals[BAD, "samples"])
    assert np.flatnonzero(present(devices)).tolist() == OTHERS
    assert devices.refusals == {(BAD, "samples"): 1}


def test_does_not_let_in_a_device_whose_sample_count_changed(server: DeviceServer) -> None:
    devices = fleet(server, None)
    before = devices.weights
    Fake(server.address[1], BAD, lambda asked: honest(BAD, asked, samples=10**6))
    until(lambda: devices.refusals[BAD, "samples"])
    assert server.free == OTHERS
    np.testing.assert_array_equal(devices.weights, before)


def test_bounds_a_gradient_norm_of_1e30(
    server: DeviceServer, caplog: pytest.LogCaptureFixture
) -> None:
    devices = fleet(server, lying(grad_norm=1e30))
    run(devices, 0)
    reply = run(devices, 1)
    assert reply.clients.size == N
    honest_norms = np.delete(reply.grad_norms, BAD)
    assert reply.grad_norms[BAD] <= 10 * np.median(honest_norms)
    assert devices.refusals == {(BAD, "gradient norm bounded"): 1}
    assert "bounded (gradient norm): 1e+30" in caplog.text
    assert "refused" not in caplog.text  # its reply counts


@pytest.mark.parametrize("claimed", [1e9, -3.0])
def test_bounds_computing_seconds_by_what_was_measured(
    server: DeviceServer, claimed: float
) -> None:
    devices = fleet(server, lying(computing_seconds=claimed))
    reply = run(devices, 1)
    assert (reply.computing_seconds >= 0).all()
    assert (reply.computing_seconds <= reply.seconds).all()
    assert devices.refusals == {(BAD, "seconds bounded"): 1}


def test_does_not_believe_a_device_that_claims_to_be_fast(server: DeviceServer) -> None:
    # The round's seconds are the server's own: what a device says of its computing does not count.
    devices = fleet(server, lying(computing_seconds=1e-12))
    reply = run(devices, 1)
    assert reply.seconds[BAD] > 1e-6
    assert not devices.refusals


@pytest.mark.parametrize(
    "messages",
    [
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x08"],
        [b""],
        [Said(part={"numbers": b"x"}).SerializeToString()],
        [Said(part={}).SerializeToString()] * 3,
        [Said(part={"numbers": bytes(PART)}).SerializeToString()],
        [b"\x22" + b"\xff\xff\xff\xff\x0f" + bytes(100)],
    ],
    ids=["no_message", "cut", "no_kind", "short_part", "empty_parts", "too_much", "endless"],
)
def test_drops_a_device_that_does_not_speak_the_protocol(
    server: DeviceServer, messages: list[bytes]
) -> None:
    def answer(asked: Received) -> list[bytes]:
        return messages if asked.kind == "train" else honest(BAD, asked)

    devices = fleet(server, answer)
    reply = run(devices, 0)
    assert reply.clients.tolist() == OTHERS
    assert devices.refusals == {(BAD, "protocol"): 1}
    assert run(devices, 1, OTHERS).clients.tolist() == OTHERS


def test_drops_a_device_whose_message_is_too_long_to_be_read(server: DeviceServer) -> None:
    def answer(asked: Received) -> list[bytes]:
        return [bytes(LONGEST + 1)] if asked.kind == "train" else honest(BAD, asked)

    devices = fleet(server, answer)
    assert run(devices, 0).clients.tolist() == OTHERS
    until(lambda: BAD not in server.connected)
    assert run(devices, 1, OTHERS).clients.tolist() == OTHERS


def test_drops_a_device_that_speaks_unasked(server: DeviceServer) -> None:
    def answer(asked: Received) -> list[bytes]:
        return honest(BAD, asked) * (2 if asked.kind == "train" else 1)

    devices = fleet(server, answer)
    assert run(devices, 0).clients.size == N  # the first of the two is a reply as any other
    until(lambda: BAD not in server.connected)
    assert devices.refusals == {(BAD, "protocol"): 1}


def test_counts_a_device_whose_training_fails(server: DeviceServer) -> None:
    def answer(asked: Received) -> list[bytes]:
        if asked.kind == "train":
            return encode(Said(task=asked.task, failed={"message": "MemoryError"}))
        return honest(BAD, asked)

    devices = fleet(server, answer)
    assert run(devices, 0).clients.tolist() == OTHERS
    assert devices.refusals == {(BAD, "failed"): 1}


def test_a_device_cannot_forge_lines_of_the_log(
    server: DeviceServer, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x\nWARNING device-0: refused\x1b[2J"

    def answer(asked: Received) -> list[bytes]:
        if asked.kind == "train":
            return encode(Said(task=asked.task, failed={"message": forged}))
        return honest(BAD, asked)

    devices = fleet(server, answer)
    run(devices, 0)
    stranger = Line(server.address[1], forged)
    assert stranger.status is grpc.StatusCode.PERMISSION_DENIED
    stranger.close()
    assert "WARNING device-0" in caplog.text  # it is told, quoted
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


@pytest.mark.parametrize(
    "changes",
    [{"loss": None}, {"loss": np.nan}, {"correct": 3}, {"correct": -1}, {"held_out": -1}],
    ids=str,
)
def test_refuses_a_bad_share_in_an_evaluation(
    server: DeviceServer, changes: dict[str, Any]
) -> None:
    def answer(asked: Received) -> list[bytes]:
        return honest(BAD, asked, **changes if asked.kind == "evaluate" else {})

    devices = fleet(server, answer)
    assert evaluated(devices)[:2] == (1.0, 0.5)
    assert devices.refusals == {(BAD, "evaluation"): 1}


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"loss": 1e308}, {"loss bounded"}),
        ({"loss": -1e308}, {"loss bounded"}),
        ({"loss": -1e6}, {"loss bounded"}),
        ({"loss": 2**62}, {"loss bounded"}),
        ({"held_out": 2**52, "correct": 2**52}, {"held out bounded"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("bad", [0, N - 1])  # the first is looked at when least is known
def test_one_absurd_number_does_not_end_a_run(
    server: DeviceServer, changes: dict[str, Any], reasons: set[str], bad: int
) -> None:
    def answer(asked: Received) -> list[bytes]:
        says_it = asked.kind == "evaluate" or (asked.kind == "train" and "loss" in changes)
        return honest(bad, asked, **changes if says_it else {})

    for client in range(N):
        Fake(server.address[1], client, answer if client == bad else None)
    devices = DeviceBackend(server, MODEL, Seeds(0), deadline=300.0, patience=300.0, least=N)
    devices.prepare({})
    outcome = train(
        devices,
        Solve(SCHEMES["uniform"], k=5),
        schedule=inverse(0.1),
        stop=Stop(loss=0.05, accuracy=0.95, rounds=8),
        seeds=Seeds(0),
        evaluate_every=2,
    )
    assert outcome.state.ended == "rounds"
    whole = [row for row in outcome.history.rows if not np.isnan(row.accuracy)]
    assert len(whole) >= 5
    # Ten times an honest one's say is the most that the bad one has.
    assert all(0.5 < row.loss < 10 for row in whole)
    assert all(0.5 <= row.accuracy < 0.95 for row in whole)
    assert devices.refusals.keys() == {(bad, reason) for reason in reasons}


def test_counts_what_is_held_out_as_it_is_where_devices_differ(server: DeviceServer) -> None:
    # Device 6 holds out fifty times as many as the others, and less than it trains on.
    def large(asked: Received) -> list[bytes]:
        if asked.kind == "job":
            return honest(N - 1, asked, samples=400)
        return honest(N - 1, asked, held_out=100, correct=100)

    for client in range(N):
        Fake(server.address[1], client, large if client == N - 1 else None)
    devices = DeviceBackend(server, MODEL, Seeds(0), deadline=300.0)
    devices.prepare({})
    assert evaluated(devices).accuracy == pytest.approx(106 / 112)
    assert not devices.refusals


def test_says_that_a_model_has_diverged_when_most_devices_say_so(server: DeviceServer) -> None:
    port = server.address[1]
    for client in range(N):
        Fake(port, client, lambda asked, i=client: honest(i, asked, **_without_loss(asked)))  # type: ignore[misc]
    devices = DeviceBackend(server, MODEL, Seeds(0), deadline=300.0)
    devices.prepare({})
    assert np.isnan(evaluated(devices, np.full(MODEL.size, 1e300)).loss)


def _without_loss(asked: Received) -> dict[str, Any]:
    return {"loss": None} if asked.kind == "evaluate" else {}


def trained(devices: DeviceBackend, stop: Stop, journal: Checkpoint | None = None) -> Outcome:
    return train(
        devices,
        Solve(SCHEMES["optimal-mean"], k=5, warm_up=2, refresh=2),
        schedule=inverse(0.1),
        stop=stop,
        seeds=Seeds(0),
        callbacks=[] if journal is None else [journal],
    )


@pytest.mark.parametrize("norm", [1e-40, 1e-150, 1e308], ids=str)
def test_one_gradient_norm_does_not_end_an_optimising_run(
    server: DeviceServer, norm: float, tmp_path: Path
) -> None:
    def answer(asked: Received) -> list[bytes]:
        return honest(BAD, asked, **{"grad_norm": norm} if asked.kind == "train" else {})

    devices = fleet(server, answer)
    for rounds in (4, 8):  # the second goes on from the checkpoint of the first
        journal = Checkpoint(tmp_path / "checkpoint.npz", {})
        outcome = trained(devices, Stop(rounds=rounds), journal)
        assert outcome.state.ended == "rounds"
        assert np.isfinite(outcome.design.largest_weight)
    assert devices.refusals.keys() == {(BAD, "gradient norm bounded")}


@pytest.mark.parametrize("samples", [2**52, 10**6])
def test_a_first_sample_count_does_not_decide_a_run(server: DeviceServer, samples: int) -> None:
    def answer(asked: Received) -> list[bytes]:
        if asked.kind == "job":
            return honest(BAD, asked, samples=samples)
        return honest(BAD, asked, loss=0.01)

    devices = fleet(server, answer)
    # Twelve of the others' means beside the six of them.
    assert devices.weights[BAD] == pytest.approx(2 / 3)
    outcome = trained(devices, Stop(loss=0.2, rounds=3))
    assert outcome.state.ended == "rounds"
    assert devices.refusals[BAD, "samples bounded"] == 1


def test_the_operators_counts_are_those_that_count(server: DeviceServer) -> None:
    port = server.address[1]
    for client in range(N):
        Fake(port, client)
    devices = DeviceBackend(
        server, MODEL, Seeds(0), deadline=300.0, patience=300.0, grace=0.0, least=1
    )
    given = {f"device-{client}": 10 * (client + 1) for client in OTHERS} | {"device-2": 7}
    devices.prepare({}, given=given)
    assert devices.samples == dict(sorted(given.items()))
    until(lambda: devices.refusals[BAD, "samples"])  # it says 30
    until(lambda: server.free == OTHERS)


def test_a_first_update_of_1e37_is_refused_also_after_a_restart(server: DeviceServer) -> None:
    far = np.full(MODEL.size, 1e37, dtype=np.float32)

    def answer(asked: Received) -> list[bytes]:
        return honest(BAD, asked, **{"floats": far} if asked.kind == "train" else {})

    devices = fleet(server, answer)
    assert run(devices, 0).clients.tolist() == OTHERS
    memory = json.loads(json.dumps(devices.memory))
    again = DeviceBackend(
        server, MODEL, Seeds(0), deadline=300.0, patience=300.0, grace=0.0, least=N
    )
    again.prepare({}, memory=memory)
    assert run(again, 1, [BAD]).refused.tolist() == [BAD]  # it is alone in this round
    assert devices.refusals == {(BAD, "update"): 2}


def test_a_device_that_answers_at_once_counts_for_a_twentieth_of_the_usual_time(
    server: DeviceServer,
) -> None:
    def slow(asked: Received, client: int) -> list[bytes]:
        if asked.kind == "train":
            time.sleep(0.6)
        return honest(client, asked)

    for client in OTHERS:
        Fake(server.address[1], client, lambda asked, i=client: slow(asked, i))  # type: ignore[misc]
    Fake(server.address[1], BAD)
    devices = DeviceBackend(
        server, MODEL, Seeds(0), deadline=300.0, patience=300.0, grace=0.0, least=N
    )
    devices.prepare({})
    reply = run(devices, 0)
    assert reply.seconds[BAD] >= 0.6 / 20
    assert devices.refusals == {(BAD, "time bounded"): 1}
    assert reply.lasted >= 0.6
    alone = run(devices, 1, [BAD])
    assert alone.lasted < alone.seconds[0]  # the clock goes on as it does
