"""Datasets are found where they should be, and fetched over networks that fail."""

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpace.data import datasets
from fedpace.data.datasets import DATASETS, Dataset, fetch, find_file, folders, missing_files
from fedpace.errors import InputError

CONTENT = bytes(range(256)) * 5000  # several blocks of the downloader
NAME = "digits.gz"


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT, as well or as badly as it is told to; remembers what it was asked for."""

    content = CONTENT
    ranges = True
    cut_after: int | None = None
    status: int | None = None
    with_length = True
    wrong_range = False
    asked: list[str | None]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/folder"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers["Range"]
        server.asked.append(asked)
        start = int(asked[6:-1]) if asked and server.ranges else 0
        if server.status or start >= len(server.content) > 0:
            self.send_error(server.status or 416)
            return
        self.send_response(206 if start else 200)
        if start:
            place = 0 if server.wrong_range else start
            end, total = len(server.content) - 1, len(server.content)
            self.send_header("Content-Range", f"bytes {place}-{end}/{total}")
        if server.with_length:
            self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        self.wfile.write(server.content[start:][: server.cut_after])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are fetched to: an empty cache, with a made-up dataset to be had."""
    monkeypatch.setattr(datasets, "_cache", lambda: tmp_path / "cache")
    monkeypatch.delenv("FEDPACE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    monkeypatch.setitem(DATASETS, "made", Dataset("http://127.0.0.1:9/", {NAME: checksum}))
    return tmp_path / "cache" / "made"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_dataset_is_fetched_once(server: Server, folder: Path) -> None:
    assert fetch("made", address=server.address) == [folder / NAME]
    assert contents(folder) == {NAME: CONTENT}
    fetch("made", address=f"{server.address}/")
    assert server.asked == [None]


def test_progress_goes_from_nothing_to_everything(server: Server, folder: Path) -> None:
    shown: list[tuple[str, int, int | None]] = []
    fetch("made", address=server.address, progress=lambda *now: shown.append(now))
    assert shown[0] == (NAME, 0, len(CONTENT))
    assert shown[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in shown] == sorted(done for _, done, _ in shown)


def test_a_cut_connection_keeps_the_part_and_the_next_try_goes_on(
    server: Server, folder: Path
) -> None:
    server.cut_after = 300_000
    kept = [0]
    for _ in range(2):
        message = rf"^{server.address}/{NAME}: cannot be fetched: the connection was cut after "
        with pytest.raises(InputError, match=message) as failed:
            fetch("made", address=server.address)
        assert f"the partial file {folder / NAME}.part is kept, and the same" in str(failed.value)
        part = contents(folder)[f"{NAME}.part"]
        assert 300_000 - datasets.CHUNK <= len(part) - kept[-1] <= 300_000
        assert part == CONTENT[: len(part)]
        kept.append(len(part))
    server.cut_after = None
    fetch("made", address=server.address)
    assert contents(folder) == {NAME: CONTENT}
    assert server.asked == [None, *(f"bytes={start}-" for start in kept[1:])]


@pytest.mark.parametrize("trouble", ["ranges", "wrong_range"])
def test_a_server_that_cannot_go_on_starts_again(
    server: Server, folder: Path, trouble: str
) -> None:
    setattr(server, trouble, trouble != "ranges")
    folder.mkdir(parents=True)
    (folder / f"{NAME}.part").write_bytes(CONTENT[:1000])
    fetch("made", address=server.address)
    assert contents(folder) == {NAME: CONTENT}


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_part_that_is_whole_or_too_long_is_used_or_replaced(
    server: Server, folder: Path, extra: bytes
) -> None:
    folder.mkdir(parents=True)
    (folder / f"{NAME}.part").write_bytes(CONTENT + extra)
    fetch("made", address=server.address)
    assert contents(folder) == {NAME: CONTENT}
    assert server.asked == ([f"bytes={len(CONTENT) + 4}-", None] if extra else [])


def test_without_a_length_it_is_fetched_too(server: Server, folder: Path) -> None:
    server.with_length = False
    totals = []
    fetch("made", address=server.address, progress=lambda *now: totals.append(now[2]))
    assert contents(folder) == {NAME: CONTENT}
    assert set(totals) == {None}


@pytest.mark.parametrize("part", [b"", CONTENT[:-5] + b"wrong"])
def test_a_wrong_checksum_leaves_nothing(server: Server, folder: Path, part: bytes) -> None:
    server.content = CONTENT[:-1] + b"!"
    if part:
        folder.mkdir(parents=True)
        (folder / f"{NAME}.part").write_bytes(part[:-2])
    with pytest.raises(InputError, match=rf"must have the checksum sha256:.*, got .* {NAME} else"):
        fetch("made", address=server.address)
    assert contents(folder) == {}


def test_a_damaged_file_is_replaced(server: Server, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(CONTENT[:-1] + b"!")
    fetch("made", address=server.address)
    assert contents(folder) == {NAME: CONTENT}


def test_a_failed_replacement_leaves_the_old_file(server: Server, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(b"old")
    server.status = 503
    with pytest.raises(InputError, match=r"cannot be fetched: Service Unavailable; try again"):
        fetch("made", address=server.address)
    assert contents(folder) == {NAME: b"old"}


def test_no_network_is_said_in_one_line_that_names_the_address(folder: Path) -> None:
    with pytest.raises(InputError, match=rf"^http://127\.0\.0\.1:9/{NAME}: cannot be ") as failed:
        fetch("made")
    assert "\n" not in str(failed.value)
    assert f"; try again, or put {NAME} into {folder} yourself" in str(failed.value)


def test_a_server_that_says_nothing_is_given_up(folder: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as silent:
        address = f"http://127.0.0.1:{silent.server_address[1]}"
        with pytest.raises(InputError, match=r"cannot be fetched: timed out; "):
            fetch("made", address=address, timeout=0.2)


@pytest.mark.parametrize("address", ["nonsense", "http://[", "http://127.0.0.1:x", "xyz://a/b"])
def test_a_bad_address_is_refused(folder: Path, address: str) -> None:
    with pytest.raises(InputError, match=rf"^{re.escape(address)}/{NAME}: cannot be fetched: .*; "):
        fetch("made", address=address)


def test_a_file_that_never_ends_is_given_up(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "MOST_BYTES", 500_000)
    with pytest.raises(InputError, match=r"must end, got [\d,]+ bytes; give another address"):
        fetch("made", address=server.address)
    assert contents(folder) == {}


def test_a_folder_that_cannot_be_made_is_said(server: Server, folder: Path) -> None:
    folder.parent.write_text("a file")
    with pytest.raises(InputError, match=rf"^{folder}: cannot be made a directory: .*; "):
        fetch("made", address=server.address)


def test_a_part_that_cannot_be_written_is_said(server: Server, folder: Path) -> None:
    (folder / f"{NAME}.part").mkdir(parents=True)
    with pytest.raises(InputError, match=rf"^{folder}/{NAME}\.part: cannot be written: Is a dir"):
        fetch("made", address=server.address)


def test_a_given_folder_is_fetched_to_and_created(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path / "given"))
    assert fetch("made", address=server.address) == [tmp_path / "given" / "made" / NAME]
    assert not folder.exists()


def test_files_are_looked_for_in_the_given_folder_and_then_in_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    monkeypatch.setenv("FEDPACE_DATA", str(given))
    (given / "made").mkdir(parents=True)
    folder.mkdir(parents=True)
    assert folders("made") == [given / "made", given, folder]
    assert find_file("made", NAME) is None
    for place in reversed(folders("made")):
        for name in ("digits", NAME):  # unpacked, and as it comes
            (place / name).touch()
            assert find_file("made", NAME) == place / name


def test_missing_files_are_said_with_their_places_and_the_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(missing_files("made", NAME)) == (
        f"{NAME} must be in {folder}, got nothing there; "
        "put them there, or run: fedpace data fetch made"
    )
    monkeypatch.setenv("FEDPACE_DATA", str(tmp_path))
    assert f"in {tmp_path}/made or {tmp_path} or {folder}, " in str(missing_files("made", NAME))


def test_a_given_folder_must_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPACE_DATA", "/no/such/folder")
    message = r"FEDPACE_DATA must be a directory, got '/no/such/folder'; create it or unset it"
    with pytest.raises(InputError, match=message):
        find_file("made", NAME)


def test_an_unknown_dataset_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"dataset must be a known name, got 'mnits'; did you .*"):
        fetch("mnits")


def test_official_addresses_are_encrypted_and_checksums_whole() -> None:
    lengths = {"md5": 32, "sha256": 64}
    for dataset in DATASETS.values():
        assert re.fullmatch(r"https://[\w./~-]+/", dataset.address)
        for checksum in dataset.checksums.values():
            kind, digest = checksum.split(":")
            assert re.fullmatch(rf"[0-9a-f]{{{lengths[kind]}}}", digest)
