"""A device as a process; arguments: PORT CLIENT [SECONDS [CERTIFICATES [NAME]]]."""

import sys
from pathlib import Path

from fedpace.devices.device import serve
from fedpace.devices.wire import Certificates
from tests.devices.fleet import NAMES, SEED, trainer


def main() -> None:
    port, client, seconds, folder, name = [*sys.argv[1:], *["0", "", ""][len(sys.argv) - 3 :]]
    name = name or NAMES[int(client)]
    tls = Certificates.read(Path(folder), name) if folder else None
    made = trainer(int(client), SEED, float(seconds))
    serve("127.0.0.1", int(port), NAMES[int(client)], lambda _: made, tls=tls)


if __name__ == "__main__":
    main()
