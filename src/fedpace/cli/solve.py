"""The command `fedpace solve`: the probabilities for one K."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.clients_file import Clients, write_probabilities
from fedpace.errors import InputError
from fedpace.sampling.design import Design, WithReplacement
from fedpace.sampling.max_time import solve_max_time
from fedpace.sampling.plan import Prediction, plan, predict, uniform_cost
from fedpace.sampling.schemes import SCHEMES, scheme_named

# A larger weight lets one draw move the model by more than the client's whole update; a cap of 1
# is met up to rounding.
RISKY_WEIGHT = 1 + 1e-9

K = options.checked("Clients drawn per round, K.", positive_count, "-k")
SCHEME = typer.Option(help=f"Scheme: {', '.join(SCHEMES)}, or your own file.py:name.")
CERTIFY = typer.Option(
    "--certify", help="Prove how far optimal-max can be from the global optimum."
)


def solve_command(
    file: Annotated[Path, options.CLIENTS],
    k: Annotated[int, K] = 10,
    scheme: Annotated[str, SCHEME] = "optimal-max",
    beta_over_alpha: Annotated[float | None, options.RATIO] = None,
    max_weight: Annotated[float | None, options.CAP] = None,
    certify: Annotated[bool, CERTIFY] = False,
    csv: Annotated[Path | None, options.csv_file("the probabilities")] = None,
    plot: Annotated[Path | None, options.picture("probability against time")] = None,
    as_json: Annotated[bool, options.JSON] = False,
) -> None:
    """Find the probabilities that reach the target soonest, and compare all schemes."""
    scheme_named(scheme, argument="--scheme")
    if certify and scheme != "optimal-max":
        raise InputError("--certify is for the scheme 'optimal-max'; choose it or leave it out")
    clients = options.checked_clients(file, k, beta_over_alpha, max_weight, csv, plot)
    names = list(dict.fromkeys([*SCHEMES, scheme]))
    found = plan(clients.profile, k, schemes=names, max_weight=max_weight)
    rows = list(output.with_progress(found, len(names), "schemes", quiet=as_json))
    if certify:
        rows = _certified(clients, rows, k, max_weight)
    design = next(row.design for row in rows if row.scheme == scheme)
    if csv or plot:
        _write(clients, design, scheme, csv, plot)
    if as_json:
        print(json.dumps(_record(clients, rows, design, scheme, k)))
    else:
        _print(clients, rows, design, scheme, k)
        output.print_written(csv, plot)


def _certified(
    clients: Clients, rows: list[Prediction], k: int, max_weight: float | None
) -> list[Prediction]:
    """Solve optimal-max with the certificate, and put it in the place of the uncertified."""
    profile = clients.profile
    arrays = (profile.weights, profile.times, profile.grad_norms)
    solution = solve_max_time(*arrays, profile.beta_over_alpha, k, max_weight, certified=True)
    design = WithReplacement(solution.q, k, profile.weights, solution=solution)
    row = predict(profile, "optimal-max", design, k, reference=uniform_cost(profile, k))
    return [row if each.scheme == row.scheme else each for each in rows]


def _write(
    clients: Clients, design: Design, scheme: str, csv: Path | None, plot: Path | None
) -> None:
    if not isinstance(design, WithReplacement):
        raise InputError(f"scheme '{scheme}' has no probabilities to write; choose another")
    profile = clients.profile
    if csv:
        write_probabilities(csv, clients.names, design.q, profile.weights, design.k)
    if plot:
        from fedpace.report.figures import probabilities_figure, save

        save(probabilities_figure(profile, design.q, scheme=scheme, k=design.k), plot)


def _print(clients: Clients, rows: list[Prediction], design: Design, scheme: str, k: int) -> None:
    from fedpace.report.tables import clients_table, print_tables, schemes_table

    print_tables(schemes_table(rows, k=k))
    if not isinstance(design, WithReplacement):
        return
    print_tables(clients_table(clients, design, scheme=scheme, show=5))
    if found := design.solution:
        print(
            f"{found.status} after {found.iterations} iterations, residual {found.residual:.1e}, "
            f"at most {100 * found.gap:,.1f} % above the global optimum"
        )
    if design.largest_weight > RISKY_WEIGHT:
        print(
            f"Note: the largest weight is {design.largest_weight:.3g}; above 1 a single draw can "
            "throw training off. --max-weight 1 prevents it."
        )


def _record(
    clients: Clients, rows: list[Prediction], design: Design, scheme: str, k: int
) -> dict[str, Any]:
    ratio, schemes = clients.profile.beta_over_alpha, [row.numbers() for row in rows]
    record = {"k": k, "scheme": scheme, "beta_over_alpha": ratio, "schemes": schemes}
    if isinstance(design, WithReplacement):
        if design.solution is not None:
            fields = ("objective", "status", "iterations", "residual", "gap")
            record["solution"] = {name: getattr(design.solution, name) for name in fields}
        record |= {"clients": list(clients.names), "q": design.q.tolist()}
    return record
