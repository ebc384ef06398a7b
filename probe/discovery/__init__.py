"""Finds servers: Kubernetes, DNS, files, HTTP."""
