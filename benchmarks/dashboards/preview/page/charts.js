// Lines over time: ECharts options of a panel's data, and what charts over time share.

const moments = (one) => one.values.map((_, i) => (one.start + i * one.step) * 1000);

function seriesColor(one, index) {
  const own = one.field.color;
  if (own?.mode === "fixed" && own.fixedColor) return color(own.fixedColor);
  return theme().palette[index % theme().palette.length];
}

function timeAxis(panel, width) {
  return {
    type: "time", min: panel.from * 1000, max: panel.to * 1000, splitNumber: Math.max(2, Math.floor(width / 130)),
    axisLine: { lineStyle: { color: theme().line } }, axisTick: { lineStyle: { color: theme().line } }, splitLine: { show: false },
    axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true },
    axisPointer: { label: { show: false } },
  };
}

/** Marks of what happened: dashed lines of the annotation's colour, in a series without points. */
function eventSeries() {
  const marks = [];
  for (const event of data.events.filter((one) => one.shown)) {
    for (const mark of event.marks) {
      marks.push({ xAxis: mark.at * 1000, lineStyle: { color: color(event.color), type: [3, 3], width: 1, opacity: 0.8 } });
    }
  }
  return {
    type: "line", name: "events", data: [], silent: true,
    markLine: { symbol: ["none", "none"], silent: true, animation: false, label: { show: false }, data: marks },
  };
}

function eventsNear(at, within) {
  return data.events.filter((one) => one.shown).flatMap((event) =>
    event.marks.filter((mark) => Math.abs(mark.at * 1000 - at) <= within).map((mark) => [event, mark]));
}

/** A tooltip of elements and not of markup: names are untrusted, and markup could not be styled under the page's policy. */
function tip(at, rows, within) {
  const marks = eventsNear(at, within).map(([event, mark]) =>
    element("p", { class: "tip-event" }, dot(color(event.color)), mark.text ? `${event.name}: ${mark.text}` : event.name));
  const lines = rows.map(([paint, name, text]) =>
    element("tr", {}, element("td", {}, dot(paint), name), element("td", {}, text)));
  return element("div", { class: "tip" }, element("p", { class: "tip-time" }, clock(at)), ...marks, element("table", {}, ...lines));
}

const NICE_SPANS = [10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
const NICE_BYTES = [1, 2, 5, 10, 20, 50, 100, 200, 500].flatMap((n) => [0, 1, 2, 3, 4].map((k) => n * 1024 ** k)).sort((a, b) => a - b);

/** Ticks a quarter apart: of what a field allows; or in minutes, hours and KiB, which are no powers of ten. */
function ticks(series, low, high) {
  const field = series[0].field;
  if (low.length && high.length) return { interval: (Math.max(...high) - Math.min(...low)) / 4 || undefined };
  const { kind, scale = 1 } = data.units[field.unit ?? "none"] ?? {};
  const most = Math.max(...series.map((one) => CALCS.max[1](one.values))) * scale;
  const nice = kind === "binary" ? NICE_BYTES : kind === "duration" && most >= 60 ? NICE_SPANS : [];
  const interval = nice.find((step) => step >= most / 4);
  if (!interval || !(most > 0)) return {};
  const span = SPANS.findLast(([size]) => size <= interval && Math.abs(interval % size) < 1e-9);
  const label = (value) => (value ? `${digits((value * scale) / span[0])} ${span[1]}` : "0 s");
  return {
    interval: interval / scale, max: (Math.ceil(most / interval) * interval) / scale,
    ...(kind === "duration" ? { formatter: label } : {}),
  };
}

function valueAxis(series, right) {
  const fields = series.map((one) => one.field);
  const all = (key) => fields.map((field) => field[key]).filter((value) => value !== undefined);
  const log = fields.some((field) => field.custom?.scaleDistribution?.type === "log");
  const [low, high] = [all("min"), all("max")];
  const { formatter = (value) => written(value, { ...fields[0], decimals: undefined }), ...steps } = log ? {} : ticks(series, low, high);
  // Far above the ticks of what is below zero, the highest value would stand on the label of zero.
  const below = high.length && !low.length && series.some((one) => CALCS.min[1](one.values) < 0);
  return {
    type: log ? "log" : "value", scale: low.length === 0, position: right ? "right" : "left", splitNumber: 4,
    min: low.length && !log ? Math.min(...low) : undefined, max: high.length ? Math.max(...high) : undefined,
    axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true, showMaxLabel: below ? false : undefined, formatter },
    axisLine: { show: false }, axisTick: { show: false },
    splitLine: { show: !right, lineStyle: { color: theme().line, width: 1, opacity: 0.6 } },
    ...steps,
    minInterval: fields[0]?.decimals === 0 ? 1 : undefined,
  };
}

/** Whether a series has the axis on the right, beside others that have not. */
function onRight(one, panel) {
  const right = (series) => series.field.custom?.axisPlacement === "right";
  return right(one) && !panel.series.every(right);
}

function line(one, index, panel) {
  const custom = one.field.custom ?? {};
  const paint = seriesColor(one, index);
  const points = moments(one).map((at, i) => [at, one.values[i]]);
  const alone = one.values.map((value, i) =>
    value !== null && (one.values[i - 1] ?? null) === null && (one.values[i + 1] ?? null) === null);
  const stacked = custom.stacking?.mode && custom.stacking.mode !== "none";
  const dashed = custom.lineStyle?.fill === "dash" ? custom.lineStyle.dash ?? [8, 8] : custom.lineStyle?.fill === "dot" ? [2, 4] : "solid";
  const right = onRight(one, panel);
  // A tint below each of many lines is mud.
  const opacity = stacked || panel.series.length <= 2 ? (custom.fillOpacity ?? 0) / 100 : 0;
  if (custom.drawStyle === "bars") {
    return { type: "bar", name: one.name, data: points, stack: stacked ? "bars" : undefined, yAxisIndex: right ? 1 : 0, barMaxWidth: 14,
      itemStyle: { color: paint, opacity: Math.max(opacity, 0.7) } };
  }
  return {
    type: "line", name: one.name, data: points, yAxisIndex: right ? 1 : 0, connectNulls: custom.spanNulls === true,
    stack: stacked ? `lines-${right}` : undefined, step: { stepAfter: "end", stepBefore: "start" }[custom.lineInterpolation] ?? false,
    lineStyle: { width: custom.drawStyle === "points" ? 0 : Math.max(custom.lineWidth ?? 1, 1.5), type: dashed, color: paint },
    itemStyle: { color: paint }, areaStyle: opacity > 0 ? { opacity, color: paint } : undefined,
    showSymbol: true, showAllSymbol: true, symbol: "circle",
    symbolSize: (_, at) => (alone[at.dataIndex] || custom.drawStyle === "points" ? 5 : 0), emphasis: { disabled: true },
  };
}

function thresholdLines(panel) {
  const field = panel.series[0].field;
  const mode = field.custom?.thresholdsStyle?.mode ?? "off";
  if (mode === "off") return undefined;
  const lines = (field.thresholds?.steps ?? []).filter((step) => typeof step.value === "number");
  const type = mode.startsWith("dashed") ? [6, 6] : "solid";
  return {
    symbol: ["none", "none"], silent: true, label: { show: false },
    data: lines.map((step) => ({ yAxis: step.value, lineStyle: { color: color(step.color), type, width: 1 } })),
  };
}

function linesOption(panel, width) {
  const series = panel.series.map((one, i) => line(one, i, panel));
  const [left, right] = [0, 1].map((axis) => panel.series.filter((_, i) => series[i].yAxisIndex === axis));
  series[0].markLine = thresholdLines(panel);
  const within = (Math.max(...panel.series.map((one) => one.step)) / 2) * 1000;
  return frame({
    xAxis: timeAxis(panel, width),
    yAxis: [valueAxis(left, false), ...(right.length ? [valueAxis(right, true)] : [])],
    legend: { show: false, data: panel.series.map((one) => one.name) },
    tooltip: tooltip({
      trigger: "axis", axisPointer: { type: "line", lineStyle: { color: theme().soft } },
      formatter: (points) => {
        if (!points.length) return "";
        const rows = points.filter((point) => point.value[1] !== null && point.seriesName !== "events");
        rows.sort((a, b) => b.value[1] - a.value[1]);
        const shown = rows.slice(0, 16).map((point) =>
          [seriesColor(panel.series[point.seriesIndex], point.seriesIndex), point.seriesName,
            shown(point.value[1], panel.series[point.seriesIndex].field).text]);
        return tip(points[0].value[0], shown, within);
      },
    }),
    series: [...series, eventSeries()],
  });
}

/** Each moment as a point: one value over another one. */
function pointsOption(panel) {
  const { of } = panel.series[0];
  const series = panel.series.map((one, i) => ({
    type: "scatter", name: one.name, symbolSize: 6, yAxisIndex: onRight(one, panel) ? 1 : 0, itemStyle: { color: seriesColor(one, i), opacity: 0.75 },
    data: one.values.map((value, at) => [one.x[at], value, moments(one)[at]]).filter(([x, y]) => x !== null && y !== null),
  }));
  const [left, right] = [0, 1].map((axis) => panel.series.filter((_, i) => series[i].yAxisIndex === axis));
  return frame({
    grid: { left: 6, right: 26, top: 10, bottom: 20, containLabel: true },
    xAxis: {
      type: "value", scale: true, name: of.custom?.axisLabel, nameLocation: "middle", nameGap: 22, nameTextStyle: { color: theme().soft, fontSize: 11 },
      axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true, formatter: (value) => written(value, of) },
      axisLine: { lineStyle: { color: theme().line } }, axisTick: { show: false }, splitLine: { show: false },
    },
    yAxis: [valueAxis(left, false), ...(right.length ? [valueAxis(right, true)] : [])],
    legend: { show: false, data: panel.series.map((one) => one.name) },
    tooltip: tooltip({
      trigger: "item",
      formatter: ({ seriesIndex, value: [x, y, at] }) => {
        const one = panel.series[seriesIndex];
        return tip(at, [[seriesColor(one, seriesIndex), one.name, `${shown(y, one.field).text} at ${written(x, of)}`]], 0);
      },
    }),
    series,
  });
}
