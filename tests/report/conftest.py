import pytest

from fedpace.report.summary import Summary

from .made import real_summary, store_real_runs


@pytest.fixture(scope="session")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = tmp_path_factory.mktemp("runs")
    store_real_runs(folder)
    return real_summary(folder)
