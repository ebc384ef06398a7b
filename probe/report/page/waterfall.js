// Waterfall of canaries: one row each, from the scheduled time to the last token.

const ROW = 17;
const KINDS = { late: "sent late by Kneewatch", wait: "wait for the first token", tokens: "tokens, one line each",
  slow_wait: "wait that missed the TTFT objective", slow_tokens: "tokens that missed an objective: TPOT, E2E or ITL", failed: "failed" };

/** Return the colour of a kind of phase: one for each verdict, two for what met the objectives. */
function phasePaint(kind) {
  const { named, palette, soft } = theme();
  return { late: soft, wait: palette[0], tokens: named.green, slow_wait: named.purple, slow_tokens: named.orange, failed: named.red }[kind];
}

/** Return the moments that are at least `least` apart. */
function apart(moments, least) {
  let last = -Infinity;
  return moments.filter((at) => at - last >= least && ((last = at), true));
}

function waterfallOption(rows, limit, width) {
  const pieces = rows.flatMap((row, y) => row.pieces.map(([kind, from, to]) => ({ value: [from, y, to], itemStyle: { color: phasePaint(kind) }, kind })));
  const most = Math.max(...rows.flatMap((row) => row.pieces.map((piece) => piece[2])), limit ?? 0);
  const ticks = rows.flatMap((row, y) => apart(row.tokens, (3 * most) / Math.max(width - 90, 100)).map((at) => [at, y]));
  const height = (api) => api.size([0, 1])[1] * 0.72;
  return frame({
    grid: { left: 6, right: 26, top: 22, bottom: 4, containLabel: true },
    xAxis: {
      type: "value", min: 0, max: most * 1.02, position: "bottom", axisLine: { lineStyle: { color: theme().line } }, splitLine: { lineStyle: { color: theme().line, opacity: 0.6 } },
      axisLabel: { color: theme().soft, fontSize: 11, hideOverlap: true, showMaxLabel: false, formatter: (value) => duration(value) },
    },
    yAxis: {
      type: "category", inverse: true, data: rows.map((row) => row.label), axisLine: { show: false }, axisTick: { show: false },
      axisLabel: { color: theme().soft, fontSize: 11, interval: 0 },
    },
    tooltip: tooltip({ trigger: "item", formatter: ({ value }) => rowTip(rows[value[1]]) }),
    series: [{
      type: "custom", data: pieces, encode: { x: [0, 2], y: 1 }, clip: true,
      renderItem: (params, api) => {
        const [from, to] = [api.coord([api.value(0), api.value(1)]), api.coord([api.value(2), api.value(1)])];
        const tall = height(api);
        return { type: "rect", shape: { x: from[0], y: from[1] - tall / 2, width: Math.max(to[0] - from[0], 1), height: tall }, style: { fill: api.visual("color"), opacity: 0.85 } };
      },
      markLine: limit === null ? undefined : {
        symbol: ["none", "none"], silent: true, animation: false,
        data: [{ xAxis: limit, lineStyle: { color: theme().ink, type: [5, 5], width: 1 }, label: { show: true, formatter: "TTFT objective", color: theme().soft, fontSize: 11, position: "start", distance: 6 } }],
      },
    }, {
      type: "custom", silent: true, data: ticks, encode: { x: 0, y: 1 }, clip: true,
      renderItem: (params, api) => {
        const [x, y] = api.coord([api.value(0), api.value(1)]);
        const tall = height(api);
        return { type: "line", shape: { x1: x, x2: x, y1: y - tall / 2, y2: y + tall / 2 }, style: { stroke: theme().card, lineWidth: 1, opacity: 0.8 } };
      },
    }],
  });
}

function rowTip(row) {
  return element("div", { class: "tip" }, element("p", { class: "tip-head" }, row.when), row.said ? element("p", {}, row.said) : null,
    element("table", {}, ...row.facts.map(([name, text]) => element("tr", {}, element("td", {}, name), element("td", {}, text)))));
}

function waterfallFigure({ rows, limit, words }) {
  const place = element("div", { class: "chart waterfall", role: "img", tabindex: "0", "aria-label": words });
  const shown = new Set(rows.flatMap((row) => row.pieces.map((piece) => piece[0])));
  const legend = element("ul", { class: "legend", "aria-hidden": "true" },
    ...Object.keys(KINDS).filter((kind) => shown.has(kind)).map((kind) => element("li", {}, swatch(phasePaint(kind), "block"), KINDS[kind])));
  place.style.height = `${rows.length * ROW + 46}px`;
  place.addEventListener("keydown", (event) => walkRows(event, place, rows));
  return [element("figure", {}, place, legend), place, (width) => waterfallOption(rows, limit, width)];
}

/** Up and down go from canary to canary. */
function walkRows(event, place, rows) {
  const move = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!move) return;
  event.preventDefault();
  const at = Math.min(Math.max(Number(place.dataset.at ?? -1) + move, 0), rows.length - 1);
  place.dataset.at = String(at);
  const piece = rows.slice(0, at).reduce((sum, row) => sum + row.pieces.length, 0);
  echarts.getInstanceByDom(place)?.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: piece });
}
