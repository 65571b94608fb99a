"""The commands `fedpace lab certs` and `join`: devices anywhere."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from fedpace.checks import positive_count
from fedpace.cli import options
from fedpace.errors import InputError

OUT = typer.Option(help="Directory for the files. Give the same one again to add devices.")
DEVICES = typer.Option(
    help="Number of devices (device-00, device-01, …), or names separated by commas."
)
SERVER = typer.Option(help="Names and addresses of the server, separated by commas.")
DAYS = options.checked("Days until the certificates expire.", positive_count)
CERTS = typer.Option(help="Directory with ca.pem and this device's NAME.pem and NAME-key.pem.")
PACE = options.checked(
    "Most bytes per second, in each direction.", options.positive, default="no limit"
)
PATIENCE = options.checked(
    "Seconds without a server before giving up.", options.positive, default="never"
)
ALLOW = typer.Option(
    metavar="PATH",
    help="Python file or module that the server's study may use here, as data or as a model. "
    "Repeat it for more. Without it, the server can run no Python code of its choice.",
    show_default="none",
)


def certs_command(
    out: Annotated[Path, OUT],
    devices: Annotated[str, DEVICES],
    server: Annotated[str, SERVER],
    days: Annotated[int, DAYS] = 825,
) -> None:
    """Make certificates for the server and for every device.

    Existing certificates stay, except those that expire within 30 days, that are for another
    --server, or that cannot be used.
    """
    options.need("lab", "cryptography")
    from fedpace.devices.certificates import AUTHORITY, make_certificates
    from fedpace.devices.join import parse_devices

    names = parse_devices(devices)
    hosts = [host.strip() for host in server.split(",") if host.strip()]
    if not hosts:
        example = "write 192.168.1.10"
        raise InputError(f"--server must be a name or an address, got '{server}'; {example}")
    signed = make_certificates(out, names, hosts, days=days)
    made = len(signed.keys() - {AUTHORITY})
    print(f"{out}: {made} certificates made, {len(names) + 1 - made} already existed")
    for name, why in signed.items():
        if why:
            print(f"{name}: made again, because {why}; copy it to where it is used")
    print(
        "Give each device ca.pem and its own NAME.pem and NAME-key.pem, and the server ca.pem, "
        "server.pem and server-key.pem; ca-key.pem stays with you."
    )


def join_command(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    name: Annotated[str, typer.Option(help="Name of this device, as in its certificate.")],
    certs: Annotated[Path | None, CERTS] = None,
    pace: Annotated[float | None, PACE] = None,
    patience: Annotated[float | None, PATIENCE] = None,
    allow: Annotated[list[str] | None, ALLOW] = None,
    shards: Annotated[Path | None, typer.Option(hidden=True)] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Act as a device: train on the data here when the server asks. The data stay here."""
    options.need_lab()
    from fedpace.data.datasets import look_in
    from fedpace.devices.join import join

    look_in(folder)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    join(
        address,
        name,
        certs=certs,
        shards=shards,
        pace=pace,
        patience=patience,
        allow=allow or (),
    )
