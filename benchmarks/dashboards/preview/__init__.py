"""Dashboards without Grafana: each as one HTML file, drawn from the current answers of a Prometheus.

A tool for development: it makes the pictures in docs/, and shows whether every query of a dashboard has an answer.
In: the dashboards' JSON as Grafana reads it, and the address of a Prometheus. Out: pages that need nothing else.
`fields`, `answers` and `tables` interpret a panel; page/ draws it in the browser.
"""
