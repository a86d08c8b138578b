"""Measurements. Nothing here is asserted by a test; every figure names how it was taken."""
