"""Dashboards without Grafana: each as one HTML file, drawn from what a Prometheus answers at that moment.

In: the dashboards' JSON as Grafana reads it, and the address of a Prometheus. Out: pages that need nothing else.
What a panel means is read here (`fields`, `answers`, `tables`), how it looks is in page/ and done by the browser.
"""
