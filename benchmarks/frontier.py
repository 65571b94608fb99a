"""Round time against variance: what draws can have of both, on the fleet of Simulation Setup 1.

Each line is a family of designs along c, from the fewest rounds to the shortest ones:
independent draws (P3 and P2), tiers, and the bound that no unbiased draw can beat.

    python benchmarks/frontier.py --out docs/results/frontier.png
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpace import SCHEMES, Profile, solve_mean_time, solve_tiers, variance_term
from fedpace.sampling.tiers import Tiered
from fedpace.studies.build import simulator
from fedpace.studies.study import load_study

RATIOS = np.geomspace(1e-2, 1e3, 26)
Point = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("frontier.png"))
    options = parser.parse_args()
    study = load_study("simulation-1")
    backend = simulator(study, options.seed)
    fleet = Profile(backend.weights, backend.times.usual, np.ones(backend.weights.size))
    k = study.training.k

    def independent(scheme: str) -> Callable[[Profile], Point]:
        def point(profile: Profile) -> Point:
            design = SCHEMES[scheme](profile, k)
            return design.variance_term(profile), design.expected_round_time(profile.times)

        return point

    def tiers(count: int) -> Callable[[Profile], Point]:
        def point(profile: Profile) -> Point:
            columns = (profile.weights, profile.times, profile.grad_norms)
            found = solve_tiers(*columns, profile.beta_over_alpha, k, tiers=count)
            parts = (found.tiers, found.chances, found.inclusion)
            design = Tiered(*parts, profile.weights, k=k)
            return design.variance_term(profile), design.expected_round_time(profile.times)

        return point

    def bound(profile: Profile) -> Point:
        columns = (profile.weights, profile.times, profile.grad_norms)
        q = solve_mean_time(*columns, profile.beta_over_alpha).q
        return variance_term(q, profile.weights, profile.grad_norms), float(q @ profile.times)

    families = {
        "optimal-mean (P3), independent draws": independent("optimal-mean"),
        "optimal-max (P2), independent draws": independent("optimal-max"),
        "4 tiers": tiers(4),
        f"{fleet.n // k} tiers (N/K)": tiers(fleet.n // k),
        "P3 with its mean time: bound": bound,
    }
    print("| S / S_0 up to | " + " | ".join(families) + " |")
    print("|---|" + "---:|" * len(families))
    curves = {
        name: np.array([point(fleet.with_ratio(ratio)) for ratio in RATIOS])
        for name, point in families.items()
    }
    for most in (1.2, 1.5, 2.0, 3.0, 5.0):
        least = (points[points[:, 0] <= most, 1].min(initial=np.inf) for points in curves.values())
        print(
            f"| {most:g} | "
            + " | ".join(f"{each:.2f} s" if np.isfinite(each) else "–" for each in least)
            + " |"
        )
    _draw(curves, options.out)


def _draw(curves: dict[str, np.ndarray], out: Path) -> None:
    import altair as alt

    from fedpace.report.charts import Figure, chart_of, save

    rows = [
        {"scheme": name, "variance": float(x), "seconds": float(y)}
        for name, points in curves.items()
        for x, y in points[np.argsort(points[:, 0])]
    ]
    names, dashes = list(curves), [[1, 0], [6, 3], [1, 0], [1, 0], [2, 2]]
    x = alt.X("variance:Q", title="variance term S, in units of its least S₀").scale(
        type="log", domain=[0.7, 30], nice=False
    )
    lines = chart_of("curves").mark_line(strokeWidth=2.4, clip=True).encode(
        x=x,
        y=alt.Y("seconds:Q", title="expected round time, s"),
        color=alt.Color("scheme:N", title=None, scale=alt.Scale(domain=names)),
        strokeDash=alt.StrokeDash("scheme:N", title=None).scale(domain=names, range=dashes),
        order=alt.Order("variance:Q"),
    )  # fmt: skip
    title = "Round time against variance, Simulation Setup 1, K = 10"
    chart = lines.properties(height=300)
    save(out, Figure(name="frontier", title=title, chart=chart, data={"curves": rows}))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
