"""Types and arithmetic that all share: requests, latencies, objectives, workloads."""
