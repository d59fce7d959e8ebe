"""Reports of finished runs: scores with intervals, one HTML page to read samples in, comparisons.

Everything here reads a run folder and nothing else: no model, no problem set, no sandbox.
"""
