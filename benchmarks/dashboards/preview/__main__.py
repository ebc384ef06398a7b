"""The dashboards of a configuration as HTML pages, without Grafana: `python -m benchmarks.dashboards.preview`.

-c FILE            the configuration
--prometheus URL   where its series are
-o FOLDER          where the pages go
--target NAME      the target that the pages show; the first of the configuration
--hours 3          how far back they go; as each dashboard has it
--scrape-interval 60s  as for `kneewatch dashboards`
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.dashboards.preview.asking import QueryError
from benchmarks.dashboards.preview.write import write_pages
from dashboards.build import render
from dashboards.layout import SCRAPE_S
from probe.config.config_file import load_config
from probe.core.durations import parse_duration
from probe.core.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboards.preview", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--target")
    parser.add_argument("--hours", type=float)
    parser.add_argument("--scrape-interval", type=parse_duration, default=SCRAPE_S)
    given = parser.parse_args(argv)
    try:
        config = load_config(given.config)
        target = config.target(given.target) if given.target else config.targets[0]
        dashboards = render(config, scrape_interval_s=given.scrape_interval)
        for file in write_pages(dashboards, given.prometheus.rstrip("/"), target.name, given.out, given.hours):
            print(file)
    except (ConfigError, QueryError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
