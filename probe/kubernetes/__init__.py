"""The Kubernetes API, and Leases."""
