"""One run of a study."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.client_stats import empty_client_stats, estimated_grad_norms, learn
from fedpace.samplers.pilots import RATIO
from fedpace.sampling.design import Everyone, WithReplacement
from fedpace.sampling.independent import Independent
from fedpace.sampling.schemes import SCHEMES, needs_counts_only
from fedpace.sampling.tiers import Tiered
from fedpace.seeds import Seeds
from fedpace.studies.build import (
    check_at_hand,
    check_schemes,
    drawn_times,
    measured_profile,
    parsed_schedule,
    run_one,
    sampler,
    simulator,
)
from fedpace.studies.study import Study, load_study
from fedpace.times.round_times import Steady, Varying
from fedpace.training.stopping import Stop
from fedpace.training.training import Outcome

SMALL = (
    "data.sizes=power-law", "data.clients=6", "data.samples=150", "data.smallest=8",
    "data.features=4", "data.classes=3", "training.k=3", "training.local_steps=3",
    "training.batch=4", "training.schedule=inverse:0.3", "pilots.thresholds=[1.0, 0.9]",
    "pilots.rounds=4", "stop.loss=none", "stop.seconds=none", "stop.rounds=8",
)  # fmt: skip
LEARNING = [name for name, scheme in SCHEMES.items() if not needs_counts_only(scheme)]


def small(*overrides: str) -> Study:
    return load_study("simulation-1", [*SMALL, *overrides])


def losses(outcome: Outcome) -> list[float]:
    return [row.loss for row in outcome.history.rows]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_is_the_same_every_time(scheme: str) -> None:
    one, other = (run_one(small("devices.noise=0.2"), scheme, 3) for _ in range(2))
    assert losses(one) == losses(other)
    assert [row.seconds for row in one.history.rows] == [row.seconds for row in other.history.rows]
    np.testing.assert_array_equal(one.state.parameters, other.state.parameters)


@pytest.mark.parametrize("scheme", ["full", "uniform", "optimal-mean"])
def test_another_seed_gives_another_run(scheme: str) -> None:
    assert losses(run_one(small(), scheme, 3)) != losses(run_one(small(), scheme, 4))


def test_all_schemes_of_a_seed_share_data_initial_model_and_times() -> None:
    study = small("devices.noise=0.2", "devices.drift=0.1")
    backend = simulator(study, 3)
    outcomes = [run_one(study, scheme, 3) for scheme in SCHEMES]
    for outcome in outcomes:
        first = outcome.history.rows[0]
        assert (first.loss, first.accuracy) == backend.evaluate(backend.initial())
        np.testing.assert_array_equal(outcome.profile.weights, backend.weights)
        np.testing.assert_array_equal(outcome.profile.times, backend.usual_times)
        for before, row in pairwise(outcome.history.rows):
            expected = backend.times.at(before.seconds, row.clients, round_index=row.round - 1)
            np.testing.assert_array_equal(row.client_seconds, expected)


def test_one_draw_of_the_data_serves_all_seeds_if_the_study_says_so() -> None:
    one, other = (simulator(small("data.seed=12"), seed) for seed in (0, 1))
    np.testing.assert_array_equal(one.data.train.x, other.data.train.x)
    assert (one.times.usual != other.times.usual).any()


def test_without_a_seed_of_its_own_the_data_differs_between_seeds() -> None:
    one, other, same = (simulator(small("data.seed=none"), seed) for seed in (0, 1, 0))
    assert not np.array_equal(one.data.train.x, other.data.train.x)
    np.testing.assert_array_equal(one.data.train.x, same.data.train.x)


def test_the_simulator_is_what_the_study_says() -> None:
    study = small("training.weight_decay=0.1", "training.clip=2", "data.test_share=0.2")
    backend = simulator(study, 0)
    assert (backend.local_steps, backend.batch) == (3, 4)
    assert (backend.weight_decay, backend.clip) == (0.1, 2)
    assert backend.data.train.sizes.sum() == 150
    assert backend.data.train.sizes.min() >= 8
    assert backend.data.train.x.shape[1] == 4
    assert backend.model.size == 3 * 5


def test_times_vary_only_where_the_study_asks_for_it() -> None:
    assert isinstance(simulator(small(), 0).times, Steady)
    for override in ("devices.noise=0.1", "devices.drift=0.1", "devices.busy=0.1"):
        assert isinstance(simulator(small(override), 0).times, Varying)


def test_real_devices_take_as_long_as_their_work_does() -> None:
    real = ("devices.times=trace:fedscale", "devices.noise=0.1")
    usual = simulator(small(*real), 3).times.usual
    work = ("devices.samples=600", "devices.megabits=32")
    np.testing.assert_allclose(simulator(small(*real, *work), 3).times.usual, usual / 2)


@pytest.mark.parametrize("spec", ["exponential:1", "trace:fedscale"])
def test_slow_clients_share_labels_where_the_study_says_so(spec: str) -> None:
    backend = simulator(small(f"devices.times=by-label:{spec}"), 3)
    train, usual = backend.data.train, backend.times.usual
    labels = [np.bincount(train.client(i).y).argmax() for i in range(train.n)]
    assert len(set(labels)) > 1
    assert (np.diff(np.array(labels)[np.argsort(usual)]) >= 0).all()
    same = simulator(small(f"devices.times={spec}"), 3).times.usual
    np.testing.assert_array_equal(np.sort(usual), np.sort(same))


def test_large_clients_are_fast_where_the_study_says_so() -> None:
    backend = simulator(small("devices.times=anticorrelated:exponential:1"), 3)
    assert (np.diff(backend.data.train.sizes[np.argsort(backend.times.usual)]) <= 0).all()


def test_times_can_be_drawn_without_the_data_unless_their_order_needs_them() -> None:
    study = small("devices.times=trace:fedscale", "devices.samples=10")
    without = drawn_times(study, study.devices.times, Seeds(3))
    np.testing.assert_array_equal(without, simulator(study, 3).times.usual)
    with pytest.raises(InputError, match="labels must have one entry per client"):
        drawn_times(study, "by-label:constant:1", Seeds(3))


@pytest.mark.parametrize("order", ["", "correlated:"])
def test_a_trace_that_is_not_there_is_missed_before_any_run(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPACE_DATA", "")
    check_at_hand(small(f"devices.times={order}trace:fedscale"))
    with pytest.raises(InputError, match=r"got FEDPACE_DATA not set; .*use trace:fedscale"):
        check_at_hand(small(f"devices.times={order}trace:fedscale:all"))


def test_the_paper_sizes_are_used_where_asked_for() -> None:
    backend = simulator(load_study("simulation-1"), 0)
    assert backend.data.train.sizes.sum() == 20_509
    assert backend.weights.size == 100


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_schemes_that_need_to_learn_something_have_pilots(scheme: str) -> None:
    outcome = run_one(small(), scheme, 0)
    phases = {row.phase for row in outcome.history.rows}
    learns = scheme in LEARNING
    assert phases == ({"pilot-uniform", "pilot-weighted", "train"} if learns else {"train"})
    assert (RATIO in outcome.notes) == learns
    kinds = {"full": Everyone, "optimal-tiers": Tiered, "optimal-independent": Independent}
    assert isinstance(outcome.design, kinds.get(scheme, WithReplacement))
    assert outcome.state.ended == "rounds"


def test_a_warm_up_takes_the_place_of_pilots() -> None:
    outcome = run_one(small("sampling.warm_up=3"), "optimal-mean", 0)
    phases = [row.phase for row in outcome.history.rows]
    assert phases == ["warm-up"] * 4 + ["train"] * 5
    assert RATIO not in outcome.notes


def test_a_study_without_pilots_warms_up_for_ten_rounds() -> None:
    outcome = run_one(small("pilots=none", "stop.rounds=12"), "optimal-mean", 0)
    assert [row.phase for row in outcome.history.rows].count("warm-up") == 11
    assert [row.round for row in outcome.history.rows] == list(range(13))


def test_a_refresh_solves_again_with_what_was_learned_since() -> None:
    once, often = (
        run_one(small("sampling.warm_up=3", *more), "optimal-mean", 0).profile.grad_norms
        for more in ((), ("sampling.refresh=2",))
    )
    assert (once != often).any()


@pytest.mark.parametrize("scheme", ["uniform", "optimal-mean"])
def test_the_studys_server_makes_the_models(scheme: str) -> None:
    average, adam, same = (
        run_one(small(f"training.server={server}"), scheme, 0).state.parameters
        for server in ("average", "adam:0.05", "adam:0.05")
    )
    assert (average != adam).any()
    np.testing.assert_array_equal(adam, same)


@pytest.mark.parametrize("learn", ["sampling.warm_up=10", "pilots.rounds=20"])
def test_times_that_are_not_known_are_learned(learn: str) -> None:
    study = small("devices.known=false", learn, "pilots.thresholds=[0.0]", "stop.rounds=45",
                  "sampling.refresh=5", "training.k=4")  # fmt: skip
    backend = simulator(study, 0)
    assert backend.usual_times is None
    outcome = run_one(study, "optimal-mean", 0)
    np.testing.assert_allclose(outcome.profile.times, backend.times.usual)
    expected = [row.expected_round_seconds for row in outcome.history.rows[1:]]
    phases = [row.phase for row in outcome.history.rows[1:]]
    for seconds, phase in zip(expected, phases, strict=True):
        assert np.isfinite(seconds) == (phase == "train")


def test_hidden_times_under_noise_are_learned_closely_and_cost_little() -> None:
    study = small("devices.noise=0.3", "sampling.warm_up=10", "sampling.refresh=10",
                  "stop.rounds=120", "training.k=4", "training.local_steps=1")  # fmt: skip
    known = run_one(study, "optimal-mean", 1)
    hidden = run_one(
        study.model_copy(update={"devices": study.devices.model_copy(update={"known": False})}),
        "optimal-mean",
        1,
    )
    usual = simulator(study, 1).times.usual
    # The running mean forgets: it scatters by about a third of one measurement's 30 %.
    np.testing.assert_allclose(hidden.profile.times, usual, rtol=0.5)
    assert hidden.state.seconds == pytest.approx(known.state.seconds, rel=0.25)


def test_an_oracle_has_no_pilots_and_knows_the_norms_of_a_whole_weighted_run() -> None:
    study = small("sampling.oracle=true", "sampling.c_over_s0=0.5")
    outcome = run_one(study, "optimal-mean", 2)
    assert {row.phase for row in outcome.history.rows} == {"train"}
    assert outcome.history.rows[1].seconds == outcome.history.rows[1].round_seconds
    whole = run_one(study, "weighted", 2)
    seen = empty_client_stats(6)
    for row in whole.history.rows:
        seen = learn(seen, row)
    norms = estimated_grad_norms(seen, 6)
    np.testing.assert_allclose(outcome.profile.grad_norms, norms)
    s0 = float(outcome.profile.weights @ norms) ** 2
    assert outcome.profile.beta_over_alpha == pytest.approx(0.5 * s0)


def test_an_oracle_without_a_given_c_takes_s0() -> None:
    study = small("sampling.oracle=true")
    backend = simulator(study, 2)
    profile = measured_profile(study, backend, backend.seeds)
    s0 = float(profile.weights @ profile.grad_norms) ** 2
    assert profile.beta_over_alpha == pytest.approx(s0)


def test_the_cap_on_the_weights_is_kept() -> None:
    outcome = run_one(small("sampling.max_weight=0.5", "sampling.c_over_s0=9"), "optimal-mean", 0)
    assert outcome.design.largest_weight <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["stop.loss=100", "stop.sustained=false"], "target loss"),
        (["stop.loss=100", "stop.rounds=12"], "target loss"),
        (["stop.accuracy=0.0001"], "target accuracy"),
        (["stop.seconds=0.001"], "seconds"),
    ],
)
def test_runs_stop_where_the_study_says(overrides: list[str], reason: str) -> None:
    study = small(*overrides)
    outcome = run_one(study, "uniform", 0)
    assert outcome.state.ended == reason
    assert Stop(**study.stop.model_dump()).reason(outcome.history.rows[-1]) == reason


def test_an_unknown_scheme_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"got 'optimal-men'; did you mean 'optimal-mean'\?"):
        run_one(small(), "optimal-men", 0)


OWN = """
from fedpace import SCHEMES, WithReplacement

def squared(profile, k, *, max_weight=None):
    q = profile.weights ** 2
    return WithReplacement(q / q.sum(), k, profile.weights)

class Alternating:
    def __init__(self, k):
        self.k = k

    def init(self, n):
        return 0

    def design(self, state, known):
        name = "uniform" if state % 2 else "weighted"
        return SCHEMES[name](known.blank_profile, self.k)

    def observe(self, state, row):
        return state + 1
"""


def test_a_scheme_of_a_users_own_file_learns_like_ours(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    outcome = run_one(small(), f"{tmp_path}/own.py:squared", 0)
    assert isinstance(outcome.design, WithReplacement)
    q = outcome.profile.weights**2
    np.testing.assert_allclose(outcome.design.q, q / q.sum())
    assert {row.phase for row in outcome.history.rows} == {
        "pilot-uniform",
        "pilot-weighted",
        "train",
    }


def test_a_sampler_of_a_users_own_file_decides_from_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    outcome = run_one(small(), f"{tmp_path}/own.py:Alternating", 0)
    assert {row.phase for row in outcome.history.rows} == {"train"}
    assert outcome.state.sampler == 9


@pytest.mark.parametrize(
    ("text", "rates"),
    [("inverse:0.6", [0.6, 0.3]), ("constant:0.2", [0.2, 0.2]), ("bound:0.5:8", [0.5, 4 / 9])],
)
def test_schedules_are_read_from_text(text: str, rates: list[float]) -> None:
    assert [parsed_schedule(text)(r) for r in (0, 1)] == pytest.approx(rates)


@pytest.mark.parametrize(
    "text",
    [
        "", "inverse", "inverse:", "inverse:x", "inverse:0", "inverse:-1", "inverse:inf",
        "inverse:nan", "inverse:1:2", "bound:1", "bound:1:2:3", "linear:0.1",
    ],
)  # fmt: skip
def test_schedules_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"schedule must be inverse:RATE, .* got '.*'; write"):
        parsed_schedule(text)


@pytest.mark.parametrize("scheme", LEARNING)
def test_an_oracle_is_refused_where_times_are_hidden(scheme: str) -> None:
    study = small("sampling.oracle=true", "devices.known=false")
    with pytest.raises(InputError, match=r"sampling.oracle must be false"):
        run_one(study, scheme, 0)


def test_an_oracle_is_nothing_to_a_scheme_that_needs_none() -> None:
    study = small("sampling.oracle=true", "devices.known=false")
    assert run_one(study, "uniform", 0).state.ended == "rounds"


def test_the_sampler_has_the_studys_settings() -> None:
    study = small("sampling.refresh=7", "sampling.max_weight=3", "sampling.c_over_s0=0.5")
    found = sampler(study, "optimal-mean", simulator(study, 0), Seeds(0))
    wanted = {"k": 3, "refresh": 7, "max_weight": 3, "c_over_s0": 0.5, "pilot_rounds": 4}
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_a_study_with_a_link_knows_the_times_with_k_clients_in_transfer() -> None:
    study = small("devices.compute=1", "devices.link=shared:32", "devices.megabits=8")
    alone, shared = simulator(small("devices.compute=1"), 0), simulator(study, 0)
    assert alone.usual_times is not None
    assert shared.usual_times is not None
    k = study.training.k
    assert shared.usual_times - alone.usual_times == pytest.approx(8 * k / 32)
    row = run_one(study, "weighted", 0).history.rows[1]
    assert row.seconds >= alone.usual_times[row.clients].max() + 8 / 32


@pytest.mark.parametrize(
    ("scheme", "override", "message"),
    [
        ("uniform", "training.k_max=2", "training.k must be a number except for pace in rounds"),
        ("pace", "training.k_max=9999", "training.k_max must be at most the number of clients"),
    ],
)
def test_a_k_that_cannot_be_chosen_is_refused(scheme: str, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_schemes(small(override), [scheme])
