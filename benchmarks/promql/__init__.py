"""PromQL over arrays: a range query in a fraction of the time that Prometheus 2.42 needs, for replays of many months.

The subset that the generated rules use. tests/integration/test_promql_arrays.py compares it with a real Prometheus.
"""
