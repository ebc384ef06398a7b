"""GPU metrics, from dcgm-exporter or NVML."""
