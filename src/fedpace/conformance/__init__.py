"""Conformance suites for designs, samplers, servers and backends, yours as well as ours."""

from fedpace.conformance.designs import check_design
from fedpace.conformance.training import check_backend, check_sampler, check_server

__all__ = ["check_backend", "check_design", "check_sampler", "check_server"]
