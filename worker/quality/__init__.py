"""Measures what a number format costs in answers: divergence, right answers, recorded outputs."""
