"""From a server's metrics to a simulated copy, and forecasts."""
