// The data of the page, drawn into their places: now, when the page has new ones, and when it turns dark.

let data = { units: {}, events: [] };
const drawn = new Map();

function put(id, figures) {
  const place = document.getElementById(id);
  if (!place) return;
  place.replaceChildren(...figures.map(([figure]) => figure));
  for (const [, chart, option] of figures) {
    const watch = new ResizeObserver(() => {
      if (!chart.clientWidth || !chart.clientHeight) return;
      const made = echarts.getInstanceByDom(chart);
      if (made) made.resize();
      else echarts.init(chart).setOption(option(chart.clientWidth));
    });
    watch.observe(chart);
    chart.addEventListener("blur", () => echarts.getInstanceByDom(chart)?.dispatchAction({ type: "hideTip" }));
    drawn.set(chart, watch);
  }
}

function draw() {
  for (const [chart, watch] of drawn) {
    watch.disconnect();
    echarts.getInstanceByDom(chart)?.dispose();
  }
  drawn.clear();
  const text = document.getElementById("data")?.textContent;
  if (!text) return;
  data = { units: {}, events: [], ...JSON.parse(text) };
  if (data.charts) put("charts", data.charts.map(runFigure));
  if (data.waterfall) put("waterfall", [waterfallFigure(data.waterfall)]);
}

draw();
document.addEventListener("kneewatch-new-data", draw);
dark.addEventListener("change", draw);
