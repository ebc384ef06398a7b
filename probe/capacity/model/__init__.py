"""From a server's metrics to a simulated copy of it; forecasts."""
