"""The profile that a run's replies tell of."""

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.client_stats import (
    ClientStats,
    empty_client_stats,
    learn,
    profile_of,
    snapshot,
)
from fedpace.training.sampler import SamplerContext
from tests.training.fakes import row

WEIGHTS = np.array([0.5, 0.3, 0.2])
TIMES = np.array([1.0, 2.0, 3.0])


def learned() -> ClientStats:
    seen = empty_client_stats(3)
    learn(seen, row([0, 2], grad_norms=[2.0, 4.0], client_seconds=[5.0, 7.0]))
    return seen


def test_times_are_those_known_or_those_measured() -> None:
    known = SamplerContext(WEIGHTS, TIMES)
    np.testing.assert_array_equal(profile_of(learned(), known).times, TIMES)
    measured = profile_of(learned(), known._replace(times=None)).times
    np.testing.assert_allclose(measured, [5.0, 5.2, 7.0])


def test_c_is_in_units_of_s0_or_as_given_or_s0() -> None:
    known = SamplerContext(WEIGHTS, TIMES)
    s0 = profile_of(learned(), known).beta_over_alpha
    profile = profile_of(learned(), known, c_over_s0=2.5)
    assert s0 == pytest.approx(float(WEIGHTS @ profile.grad_norms) ** 2)
    assert profile.beta_over_alpha == pytest.approx(2.5 * s0)
    assert profile_of(learned(), known, beta_over_alpha=7.0).beta_over_alpha == 7.0


def test_later_rounds_do_not_change_a_snapshot() -> None:
    seen = learned()
    kept = snapshot(seen)
    known = SamplerContext(WEIGHTS)
    before = profile_of(kept, known)
    learn(seen, row([0, 1], grad_norms=[9.0, 9.0], client_seconds=[9.0, 9.0]))
    after = profile_of(kept, known)
    np.testing.assert_array_equal(before.grad_norms, after.grad_norms)
    np.testing.assert_array_equal(before.times, after.times)
    assert (profile_of(seen, known).times != after.times).any()


@pytest.mark.parametrize("name", ["squares", "reports", "seconds", "replies", "tasks"])
def test_statistics_of_fewer_clients_than_the_others_are_refused(name: str) -> None:
    seen = learned()
    seen[name] = seen[name][:2]  # type: ignore[literal-required]
    with pytest.raises(InputError, match="one entry per client"):
        learn(seen, row([0], grad_norms=[2.0], client_seconds=[5.0]))
