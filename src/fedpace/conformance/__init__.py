"""Suites that check what a protocol promises, for parts of your own as for ours."""

from fedpace.conformance.backends import check_backend
from fedpace.conformance.designs import check_design
from fedpace.conformance.states import check_sampler, check_server

__all__ = ["check_backend", "check_design", "check_sampler", "check_server"]
