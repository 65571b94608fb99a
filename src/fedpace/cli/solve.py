"""The commands on a clients file: `fedpace example`, `solve` and `plan`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.files import writable, write_text

if TYPE_CHECKING:
    from fedpace.clients_file import Clients
    from fedpace.sampling.plan import Prediction

# With a larger weight one draw moves the model by more than the client's update; a cap of 1 is
# met up to rounding.
RISKY_WEIGHT = 1 + 1e-9

# A proven gap beyond this says more about the proof than about the solution.
LOOSE = 0.1

K = options.checked_option("Clients drawn per round, K.", options.positive_count, "-k")
SCHEME = typer.Option(help=f"Scheme: {', '.join(options.SCHEMES)}, or your own file.py:name.")
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
    from fedpace.sampling.plan import plan

    options.check_scheme(scheme, argument="--scheme")
    if certify and scheme != "optimal-max":
        raise InputError("--certify is for the scheme 'optimal-max'; choose it or leave it out")
    clients = options.checked_clients(file, k, beta_over_alpha, max_weight, csv, plot)
    names = list(dict.fromkeys([*options.SCHEMES, scheme]))
    found = plan(clients.profile, k, schemes=names, max_weight=max_weight)
    rows = list(output.with_progress(found, len(names), "schemes", quiet=as_json))
    if certify:
        rows = _certify(clients, rows, k, max_weight)
    row = next(row for row in rows if row.scheme == scheme)
    if csv or plot:
        _write(clients, row, csv, plot)
    if as_json:
        print(json.dumps(_record(clients, rows, row)))
    else:
        _print(clients, rows, row, certify=certify)
        output.print_written(csv, plot)


def _certify(
    clients: Clients, rows: list[Prediction], k: int, max_weight: float | None
) -> list[Prediction]:
    """Replace the row of optimal-max by one that was solved with the certificate."""
    from fedpace.sampling.design import WithReplacement
    from fedpace.sampling.plan import predict, uniform_cost
    from fedpace.sampling.solvers.max_time import solve_max_time

    profile = clients.profile
    arrays = (profile.weights, profile.times, profile.grad_norms)
    solution = solve_max_time(*arrays, profile.beta_over_alpha, k, max_weight, certified=True)
    design = WithReplacement(solution.q, k, profile.weights, solution=solution)
    row = predict(profile, "optimal-max", design, k, reference=uniform_cost(profile, k))
    return [row if each.scheme == row.scheme else each for each in rows]


def _write(clients: Clients, row: Prediction, csv: Path | None, plot: Path | None) -> None:
    from fedpace.clients_file import write_probabilities

    columns = row.design.columns()
    if "q" not in columns:
        raise InputError(f"scheme '{row.scheme}' has no probabilities to write; choose another")
    if csv:
        write_probabilities(csv, clients.names, columns)
    if plot:
        from fedpace.report.charts import probabilities_figure, save
        from fedpace.report.notes import plural

        title = f"{row.scheme}: {plural(clients.profile.n, 'client')}, {row.k:,} drawn per round"
        save(
            plot,
            probabilities_figure(clients.profile, columns["q"], scheme=row.scheme, title=title),
        )


def _print(clients: Clients, rows: list[Prediction], row: Prediction, *, certify: bool) -> None:
    from fedpace.report.tables import clients_table, print_tables, schemes_table, tiers_table
    from fedpace.sampling.tiers import Tiered

    design = row.design
    print_tables(schemes_table(rows, k=row.k))
    if isinstance(design, Tiered):
        print_tables(tiers_table(clients.profile, design, show=5))
    if columns := design.columns():
        print_tables(clients_table(clients, columns, scheme=row.scheme, show=5))
    if found := design.solution:
        solved = f"{found.status} after {found.iterations} iterations"
        proven = _proven(found.gap, row.scheme, certify=certify)
        print(f"{solved}, residual {found.residual:.1e}, {proven}")
    print(output.OVERSTATED)
    if columns and design.largest_weight > RISKY_WEIGHT:
        print(
            f"Note: the largest weight is {design.largest_weight:.3g}; above 1 a single draw can "
            "throw training off. --max-weight 1 prevents it."
        )


def _proven(gap: float, scheme: str, *, certify: bool) -> str:
    """Describe how near the global optimum a solution is proven to be."""
    if gap <= LOOSE or certify:
        return f"at most {100 * gap:,.1f} % above the global optimum"
    remedy = "; --certify proves how near it is" if scheme == "optimal-max" else ""
    return f"a local optimum: the quick bound on the global one is too loose to tell{remedy}"


def _record(clients: Clients, rows: list[Prediction], row: Prediction) -> dict[str, Any]:
    import numpy as np

    ratio, schemes = clients.profile.beta_over_alpha, [each.numbers() for each in rows]
    record = {"k": row.k, "scheme": row.scheme, "beta_over_alpha": ratio, "schemes": schemes}
    columns = {name: column.tolist() for name, column in row.design.columns().items()}
    if found := row.design.solution:
        values = {each.name: getattr(found, each.name) for each in fields(found)}
        record["solution"] = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in values.items()
            if name not in columns
        }
    if columns:
        record |= {"clients": list(clients.names), **columns}
    return record


K_NOW = options.checked_option(
    "K in use now; c = β/α is known for it, and uniform with it has time 1.",
    options.positive_count,
    "-k",
)
KS = typer.Option(
    "--ks", help="Values of K to compare, separated by commas.", show_default="1,2,5,10,… up to N"
)

LINK = typer.Option(
    "--link",
    help="A link that the clients of a round share, shared:CAPACITY in Mbit/s; the times of the "
    "file are then those of computing.",
    show_default="none",
)
ASYNCHRONOUSLY = typer.Option(
    "--asynchronous",
    help="Compare values of C, clients always at work in asynchronous training; `--ks` are these.",
)
MEGABITS = options.checked_option(
    "Megabits that a client transfers in a round, with --link.", options.positive, "--megabits"
)


def plan_command(
    file: Annotated[Path, options.CLIENTS],
    k: Annotated[int, K_NOW] = 10,
    ks: Annotated[str | None, KS] = None,
    schemes: Annotated[str, options.COMPARED] = "all",
    beta_over_alpha: Annotated[float | None, options.RATIO] = None,
    max_weight: Annotated[float | None, options.CAP] = None,
    link: Annotated[str | None, LINK] = None,
    megabits: Annotated[float, MEGABITS] = 64.0,
    asynchronous: Annotated[bool, ASYNCHRONOUSLY] = False,
    csv: Annotated[Path | None, options.csv_file("the table")] = None,
    plot: Annotated[Path | None, options.picture("predicted time against K")] = None,
    as_json: Annotated[bool, options.JSON] = False,
) -> None:
    """Compare schemes and numbers of clients per round, and find the best."""
    from fedpace.sampling.dispatch import WITH_SHARES
    from fedpace.sampling.plan import DRAWS, best, plan, recommend, usual_ks
    from fedpace.times.links import SharedLink

    every = WITH_SHARES if asynchronous else options.SCHEMES
    names = options.named_schemes(schemes, every=every)
    wanted = None if ks is None else _parsed_ks(ks)
    clients = options.checked_clients(file, k, beta_over_alpha, max_weight, csv, plot)
    wanted = wanted or usual_ks(clients.profile.n, k)
    shared = None if link is None else SharedLink.parse(link)
    found = plan(
        clients.profile,
        k,
        ks=wanted,
        schemes=names,
        max_weight=max_weight,
        link=shared,
        megabits=megabits,
        asynchronous=asynchronous,
    )
    of = "C" if asynchronous else "K"
    total = len(wanted) * len(names)
    rows = list(output.with_progress(found, total, f"schemes × {of}", quiet=as_json))
    records = [row.numbers() for row in rows]
    if csv:
        lines = [records[0], *(each.values() for each in records)]
        write_text(csv, "".join(",".join(map(str, line)) + "\n" for line in lines))
    if plot:
        from fedpace.report.charts import plan_figure, save

        save(plot, plan_figure(rows, k=k, of=of))
    first, advice = best(rows), recommend(rows, k)
    if as_json:
        chosen = None if advice is None else advice.numbers()
        record = {"k": k, "best": first.numbers(), "recommended": chosen, "rows": records}
        print(json.dumps(record))
        return
    from fedpace.report.tables import plan_tables, print_tables

    print_tables(*plan_tables(rows, k=k, of=of))
    name = first.scheme if first.scheme == "full" else _name_row(first, of)
    print(f"Best (*): {name}, {first.relative_time:.3g} of the time of uniform with K = {k:,}.")
    more = ""
    if advice is not None and advice is not first:
        more = f" Recommended is {_name_row(advice, of)}."
    print(f"{output.OVERSTATED}{more}")
    if shared is not None:
        how = f"times are of computing, then {megabits:g} Mbit over {link}"
        drawn = f"exact where all draws can be listed, else the mean of {DRAWS} draws"
        print(f"Rounds: {how}; {'mean values of the queue' if asynchronous else drawn}.")
    given = "as given" if beta_over_alpha is not None else "(Σ p·G)², a default"
    print(f"It rests on the times and norms of the file, and on c = β/α at K = {k:,}, {given}.")
    output.print_written(csv, plot)


def _name_row(row: Prediction, of: str) -> str:
    return f"{row.scheme} with {of} = {row.k:,}"


def _parsed_ks(text: str) -> list[int]:
    remedy = "write 5,10,20"
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--ks must be integers, got '{text}'; {remedy}") from None
    return sorted({options.positive_count("--ks", value, remedy) for value in values})


# A file of a few hundred megabytes.
MOST_CLIENTS = 10_000_000

EXAMPLE_CLIENTS = options.checked_option(
    "Number of clients.",
    lambda name, value: options.positive_count(
        name, value, f"give 1 to {MOST_CLIENTS:,}", MOST_CLIENTS
    ),
)
EXAMPLE_SEED = options.checked_option(
    "Random seed; the same seed writes the same file.", options.natural
)


def example_command(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    clients: Annotated[int, EXAMPLE_CLIENTS] = 100,
    seed: Annotated[int, EXAMPLE_SEED] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write an example clients file, to try the other commands on."""
    import numpy as np

    from fedpace.clients_file import write_example

    if writable(file).exists() and not force:
        raise InputError(f"{file}: already exists; choose another name or add --force")
    write_example(file, clients, np.random.default_rng(seed))
    print(f"{file}: {clients:,} clients. Next: fedpace solve {file} -k 10")
