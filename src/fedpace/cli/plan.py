"""The command `fedpace plan`: schemes over the number of clients per round."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.files import write_text
from fedpace.sampling.plan import Prediction, best, plan, recommended, usual_ks

K = options.checked(
    "K in use now; c = β/α is known for it, and uniform with it has time 1.", positive_count, "-k"
)
KS = typer.Option(
    "--ks", help="Values of K to compare, separated by commas.", show_default="1,2,5,10,… up to N"
)


def plan_command(
    file: Annotated[Path, options.CLIENTS],
    k: Annotated[int, K] = 10,
    ks: Annotated[str | None, KS] = None,
    schemes: Annotated[str, options.COMPARED] = "all",
    beta_over_alpha: Annotated[float | None, options.RATIO] = None,
    max_weight: Annotated[float | None, options.CAP] = None,
    csv: Annotated[Path | None, options.csv_file("the table")] = None,
    plot: Annotated[Path | None, options.picture("predicted time against K")] = None,
    as_json: Annotated[bool, options.JSON] = False,
) -> None:
    """Compare schemes and numbers of clients per round, and find the best."""
    names = options.named_schemes(schemes)
    wanted = None if ks is None else _parsed_ks(ks)
    clients = options.checked_clients(file, k, beta_over_alpha, max_weight, csv, plot)
    wanted = wanted or usual_ks(clients.profile.n, k)
    found = plan(clients.profile, k, ks=wanted, schemes=names, max_weight=max_weight)
    total = len(wanted) * len(names)
    rows = list(output.with_progress(found, total, "schemes × K", quiet=as_json))
    records = [row.numbers() for row in rows]
    if csv:
        lines = [records[0], *(each.values() for each in records)]
        write_text(csv, "".join(",".join(map(str, line)) + "\n" for line in lines))
    if plot:
        from fedpace.report.charts import plan_figure, save

        save(plot, plan_figure(rows, k=k))
    first, advice = best(rows), recommended(rows, k)
    if as_json:
        chosen = None if advice is None else advice.numbers()
        record = {"k": k, "best": first.numbers(), "recommended": chosen, "rows": records}
        print(json.dumps(record))
        return
    from fedpace.report.tables import plan_tables, print_tables

    print_tables(*plan_tables(rows, k=k))
    name = first.scheme if first.scheme == "full" else _named(first)
    print(f"Best (*): {name}, {first.relative_time:.3g} of the time of uniform with K = {k:,}.")
    more = ""
    if advice is not None and advice is not first:
        more = f" Recommended is {_named(advice)}."
    print(f"{output.OVERSTATED}{more}")
    output.print_written(csv, plot)


def _named(row: Prediction) -> str:
    return f"{row.scheme} with K = {row.k:,}"


def _parsed_ks(text: str) -> list[int]:
    remedy = "write 5,10,20"
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--ks must be integers, got '{text}'; {remedy}") from None
    return sorted({positive_count("--ks", value, remedy) for value in values})
