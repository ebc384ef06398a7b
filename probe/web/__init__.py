"""Status pages, API, /probe; TLS and passwords."""
