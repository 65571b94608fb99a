"""Samplers: policies with state that decide whom to draw."""
