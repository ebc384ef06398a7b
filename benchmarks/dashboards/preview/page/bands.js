// Charts of bands over time: states, and heat maps of buckets.

/** Consecutive moments of the same value, as one bar. */
function spells(one) {
  const found = [];
  one.values.forEach((value, i) => {
    const from = (one.start + i * one.step) * 1000;
    const last = found.at(-1);
    if (value === null) return;
    if (last && last.value === value && last.to === from) last.to += one.step * 1000;
    else found.push({ value, from, to: from + one.step * 1000 });
  });
  return found;
}

function bar(api, from, to, row, share) {
  const [start, end] = [api.coord([from, row]), api.coord([to, row])];
  const height = api.size([0, 1])[1] * share;
  return { x: start[0], y: start[1] - height / 2, width: Math.max(end[0] - start[0], 1), height };
}

function inside(shape, params) {
  return echarts.graphic.clipRectByRect(shape, params.coordSys);
}

function statesOption(panel, width) {
  const rows = panel.series.flatMap((one, row) => spells(one).map((spell) => ({ value: [spell.from, row, spell.to, spell.value] })));
  return frame({
    xAxis: timeAxis(panel, width),
    yAxis: {
      type: "category", inverse: true, data: panel.series.map((one) => one.name), axisLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: theme().ink, fontSize: 11, width: 150, overflow: "truncate" },
    },
    tooltip: tooltip({
      trigger: "item",
      formatter: ({ value: [from, row, to, state] }) => {
        const { text, color: paint } = shown(state, panel.series[row].field);
        return tip(from, [[paint ?? theme().soft, panel.series[row].name, `${text}, for ${duration((to - from) / 1000)}`]], 0);
      },
    }),
    series: [{
      type: "custom", data: rows, encode: { x: [0, 2], y: 1 }, clip: true,
      renderItem: (params, api) => {
        const row = api.value(1);
        const { color: paint } = shown(api.value(3), panel.series[row].field);
        const shape = inside(bar(api, api.value(0), api.value(2), row, 0.75), params);
        return shape && { type: "rect", shape, style: { fill: paint ?? theme().palette[row % theme().palette.length], opacity: 0.85 } };
      },
    }, eventSeries()],
  });
}

function blend(stops, share) {
  const at = share * (stops.length - 1);
  const [a, b] = [stops[Math.floor(at)], stops[Math.min(Math.floor(at) + 1, stops.length - 1)]];
  const part = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(part(a, i) + (part(b, i) - part(a, i)) * (at - Math.floor(at)))).join(",")})`;
}

function heatmapOption(panel, width) {
  const field = { unit: panel.unit };
  const cells = [];
  panel.rows.forEach((row, y) => row.forEach((value, i) => {
    if (value) cells.push([(panel.start + i * panel.step) * 1000, y, value]);
  }));
  const most = cells.reduce((a, cell) => Math.max(a, cell[2]), 0);
  const names = panel.bounds.map((bound) => (bound === "+Inf" ? "more" : written(bound, field)));
  const step = panel.step * 1000;
  return frame({
    xAxis: timeAxis(panel, width),
    yAxis: {
      type: "category", data: names, axisLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true }, splitLine: { show: false },
    },
    tooltip: tooltip({
      trigger: "item",
      formatter: ({ value: [at, y, value] }) => {
        const low = written(y ? panel.bounds[y - 1] : panel.lowest, field);
        const name = panel.bounds[y] === "+Inf" ? `above ${low}` : `${low} to ${names[y]}`;
        return tip(at, [[blend(theme().heat, Math.sqrt(value / most)), name, digits(value)]], step / 2);
      },
    }),
    series: [{
      type: "custom", data: cells, encode: { x: 0, y: 1 }, clip: true,
      renderItem: (params, api) => {
        const at = api.value(0);
        const shape = inside(bar(api, at - step, at, api.value(1), 0.94), params);
        return shape && { type: "rect", shape, style: { fill: blend(theme().heat, Math.sqrt(api.value(2) / most)) } };
      },
    }, eventSeries()],
  });
}
