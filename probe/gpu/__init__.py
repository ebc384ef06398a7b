"""What the GPUs under a target say: dcgm-exporter's page, or the driver of this machine, as a GpuSnapshot."""
