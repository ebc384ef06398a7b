// Charts of a run: values over load, the objective as a dashed line, the knee as a band or a line.

const UNITS = {
  s: (value) => duration(value), "req/s": (value) => `${digits(value)} req/s`,
  share: (value) => `${percent(value * 100)} %`, count: (value) => digits(value),
};
const AXES = { ...UNITS, "req/s": (value) => digits(value) };

function knee(chart) {
  const paint = theme().named.purple;
  const label = { show: true, formatter: chart.kneeName, color: paint, fontSize: 11, position: "end", distance: 2 };
  const line = chart.knee === null ? [] : [{ xAxis: chart.knee, label, lineStyle: { color: paint, type: chart.kneeName === "knee" ? "solid" : [5, 5], width: 1.5 } }];
  const limit = chart.limit ? [{
    yAxis: chart.limit.value, lineStyle: { color: theme().soft, type: [5, 5], width: 1 },
    label: { show: true, formatter: chart.limit.name, color: theme().soft, fontSize: 11, position: chart.unit === "share" ? "insideStartBottom" : "insideStartTop" },
  }] : [];
  const upper = chart.bounds?.[1] ?? null;
  return {
    markLine: { symbol: ["none", "none"], silent: true, animation: false, data: [...line, ...limit] },
    markArea: upper === null ? undefined : { silent: true, itemStyle: { color: paint, opacity: 0.13 }, data: [[{ xAxis: chart.bounds[0] }, { xAxis: upper }]] },
  };
}

function runOption(chart, width) {
  const paints = theme().palette;
  const all = chart.series.flatMap((one) => one.points);
  const values = all.map((point) => point[1]).filter((value) => value > 0);
  const most = Math.max(...values, chart.limit?.value ?? 0);
  // A linear axis would show only the slowest step if it is far slower than the first.
  const log = chart.unit === "s" && values.length > 0 && most / Math.min(...values) > 30;
  const xs = all.map((point) => point[0]);
  // Requests in flight double from step to step: on a linear axis most points would crowd at the left.
  const flight = chart.load !== "requests/s";
  const wide = Math.max(...xs) / Math.min(...xs) > (flight ? 7 : 20);
  return frame({
    grid: { left: 6, right: 26, top: 20, bottom: 22, containLabel: true },
    xAxis: {
      type: wide ? "log" : "value", scale: true, name: chart.load, nameLocation: "middle", nameGap: 24, nameTextStyle: { color: theme().soft, fontSize: 11 },
      splitNumber: Math.max(2, Math.floor(width / 90)), axisLine: { lineStyle: { color: theme().line } }, axisTick: { lineStyle: { color: theme().line } },
      splitLine: { show: false }, axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true, formatter: (value) => digits(value) },
      ...(wide ? { min: Math.min(...xs), max: Math.max(...xs), logBase: flight ? 2 : 10 } : {}),
    },
    yAxis: {
      type: log ? "log" : "value", min: log ? undefined : 0, max: chart.unit === "share" ? 1 : log ? undefined : (extent) => Math.max(extent.max, chart.limit?.value ?? 0) * 1.06,
      splitNumber: 4, interval: chart.unit === "share" ? 0.25 : undefined, axisLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true, showMaxLabel: chart.unit === "share" ? undefined : false, formatter: AXES[chart.unit] },
      splitLine: { lineStyle: { color: theme().line, opacity: 0.6 } },
    },
    tooltip: tooltip({
      trigger: "axis", axisPointer: { type: "line", lineStyle: { color: theme().soft } },
      formatter: (points) => loadTip(chart, points),
    }),
    series: chart.series.map((one, i) => ({
      type: "line", name: one.name, symbol: "circle", symbolSize: 7, showAllSymbol: true, emphasis: { disabled: true }, lineStyle: { width: 2, color: paints[i] },
      data: one.points.map(([x, y, valid]) => ({
        value: [x, y], itemStyle: { color: valid ? paints[i] : theme().card, borderColor: paints[i], borderWidth: 1.5 },
      })),
      ...(i === 0 ? knee(chart) : {}),
    })),
  });
}

function loadTip(chart, points) {
  if (!points.length) return "";
  const rows = points.map((point) => element("tr", {}, element("td", {}, dot(theme().palette[point.seriesIndex]), point.seriesName),
    element("td", {}, UNITS[chart.unit](point.value[1]))));
  return element("div", { class: "tip" }, element("p", { class: "tip-head" }, `${digits(points[0].value[0])} ${chart.load}`), element("table", {}, ...rows));
}

function runFigure(chart) {
  const said = chart.series.map((one) => `${one.name} ${UNITS[chart.unit](one.points[0][1])} at the lowest load, ${UNITS[chart.unit](one.points.at(-1)[1])} at the highest`).join("; ");
  const known = chart.knee === null ? "" : `; ${chart.kneeName} at ${digits(chart.knee)} ${chart.load}`;
  const place = element("div", { class: "chart", role: "img", tabindex: "0", "aria-label": `${chart.title} over ${chart.load}: ${said}${known}` });
  const invalid = chart.series.some((one) => one.points.some((point) => !point[2]));
  const legend = element("ul", { class: "legend", "aria-hidden": "true" },
    ...chart.series.map((one, i) => element("li", {}, swatch(theme().palette[i]), one.name)),
    chart.limit ? element("li", {}, swatch(theme().soft, "dashed"), `${chart.limit.name} ${UNITS[chart.unit](chart.limit.value)}`) : null,
    invalid ? element("li", {}, "hollow: invalid, not judged") : null);
  place.addEventListener("keydown", (event) => walkPoints(event, place, chart.series[0].points.length));
  return [element("figure", {}, element("figcaption", {}, chart.title), place, legend), place, (width) => runOption(chart, width)];
}

function swatch(paint, kind = "") {
  const made = element("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
  made.style.borderTopColor = paint;
  return made;
}

/** Left and right go from point to point. */
function walkPoints(event, place, count) {
  const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!move) return;
  event.preventDefault();
  const at = Math.min(Math.max(Number(place.dataset.at ?? -1) + move, 0), count - 1);
  place.dataset.at = String(at);
  echarts.getInstanceByDom(place)?.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: at });
}
