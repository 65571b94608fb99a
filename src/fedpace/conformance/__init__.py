"""Suites that check what a protocol promises, for designs of one's own as for ours."""

from fedpace.conformance.designs import check_design

__all__ = ["check_design"]
