"""Measuring time so that it can be trusted, one noun a file: samples, quantiles, budgets, comparisons, trust.

Statistics here are pure functions of recorded samples; only clocks, readings and loops touch the machine.
"""
