"""One Dask cluster for all tests that do not end it."""

from collections.abc import Iterator

import pytest

from .clusters import Cluster, cluster


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2) as started:
        yield started
