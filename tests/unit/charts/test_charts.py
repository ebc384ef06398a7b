"""The vendored chart library: the published file, with its licence and notice."""

import hashlib
from pathlib import Path

from probe.charts import ECHARTS, echarts, notice

ROOT = Path(__file__).parents[3]


def test_the_library_is_the_published_one_with_its_licence() -> None:
    """As in echarts-6.1.0.tgz on npm, dist/echarts.min.js; a new version is a new file, digest and constant."""
    digest = hashlib.sha256(echarts().encode()).hexdigest()
    assert digest == "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
    assert f'version:"{ECHARTS}"' in echarts() or f'"{ECHARTS}"' in echarts()
    assert "Apache License, Version 2.0" in echarts()[:1000]
    assert "</script" not in echarts().lower()
    folder = ROOT / "probe/charts/echarts"
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "Apache ECharts" in (folder / "NOTICE").read_text()
    assert "Copyright 2017-2026 The Apache Software Foundation" in notice()
    assert "Bostock" in (folder / "LICENSE-d3").read_text()
