"""Fairness between tenants, measured in virtual time; run `python -m bench.tenants`."""
