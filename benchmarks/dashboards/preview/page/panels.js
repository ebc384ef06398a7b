// Panels: a chart with its legend and its table, single values, tables.

const OPTIONS = { lines: linesOption, states: statesOption, heatmap: heatmapOption, points: pointsOption };
const charts = new Map();

function chartPanel(panel, body, title) {
  const place = element("div", { class: "chart", role: "img", tabindex: "0", "aria-label": `${title}: ${inWords(panel)}` });
  const legend = ["lines", "points"].includes(panel.kind) ? lineLegend(panel) : panel.kind === "states" ? stateLegend(panel) : null;
  const figure = element("div", { class: "figure" }, place, legend);
  body.append(figure);
  const draw = () => {
    charts.get(place)?.dispose();
    const chart = echarts.init(place);
    charts.set(place, chart);
    chart.setOption(OPTIONS[panel.kind](panel, place.clientWidth));
    for (const button of legend?.querySelectorAll("button[aria-pressed=false]") ?? []) toggle(chart, button.dataset.name, false);
  };
  legend?.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    toggle(charts.get(place), button.dataset.name, on);
  });
  place.addEventListener("keydown", (event) => walk(event, place, panel));
  place.addEventListener("blur", () => charts.get(place)?.dispatchAction({ type: "hideTip" }));
  new ResizeObserver(() => {
    if (!place.clientWidth || !place.clientHeight) return; // in a row that is closed, or behind its table
    if (charts.has(place)) charts.get(place).resize();
    else draw();
  }).observe(place);
  asTable(panel, body, figure, title);
  return () => charts.has(place) && draw();
}

const toggle = (chart, name, on) => chart?.dispatchAction({ type: on ? "legendSelect" : "legendUnSelect", name });

/** Left and right go through the moments of a chart. */
function walk(event, place, panel) {
  const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!move || panel.kind !== "lines") return;
  event.preventDefault();
  const last = panel.series[0].values.length - 1;
  const at = Math.min(Math.max((Number(place.dataset.at ?? last + 1)) + move, 0), last);
  place.dataset.at = String(at);
  charts.get(place)?.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: at });
}

/** What a chart says, for those who do not see it. */
function inWords(panel) {
  if (panel.kind === "heatmap") return `heat map from ${written(panel.lowest, { unit: panel.unit })} up, over time`;
  return panel.series.slice(0, 12).map((one) => {
    const last = shown(CALCS.lastNotNull[1](one.values), one.field).text;
    return panel.kind === "states" ? `${one.name} ${last}` : `${one.name} ${last}, highest ${written(CALCS.max[1](one.values), one.field)}`;
  }).join("; ");
}

function lineLegend(panel) {
  const { displayMode = "table", showLegend = true, calcs = [] } = panel.options.legend ?? {};
  if (!showLegend || displayMode === "hidden") return null;
  const known = displayMode === "list" ? [] : calcs.filter((calc) => CALCS[calc]);
  const long = panel.series.some((one) => one.name.length > 14);
  return element("ul", { class: `legend ${known.length ? (long ? "told long" : "told") : "words"}` }, ...panel.series.map((one, i) => {
    const button = element("button", { type: "button", "aria-pressed": "true", title: one.name }, swatch(one, i), one.name, onRight(one, panel) ? " (right)" : "");
    button.dataset.name = one.name;
    return element("li", {}, button, ...known.map((calc) =>
      element("span", {}, element("i", {}, CALCS[calc][0]), " ", shown(CALCS[calc][1](one.values), one.field).text)));
  }));
}

function swatch(one, index) {
  const made = element("span", { class: one.field.custom?.lineStyle?.fill === "dash" ? "swatch dashed" : "swatch", "aria-hidden": "true" });
  made.style.borderTopColor = seriesColor(one, index);
  return made;
}

function stateLegend(panel) {
  const seen = new Map();
  const values = panel.series.flatMap((one) => one.values.filter((value) => value !== null).map((value) => [value, one.field]));
  for (const [value, field] of values.sort((a, b) => a[0] - b[0])) {
    const { text, color: paint } = shown(value, field);
    if (!seen.has(text)) seen.set(text, paint ?? theme().soft);
  }
  return element("ul", { class: "legend words" }, ...[...seen].map(([text, paint]) => element("li", {}, dot(paint), text)));
}

/** The same numbers as a table: forty moments at most, the newest first. */
function asTable(panel, body, figure, title) {
  if (panel.kind === "heatmap") return;
  let made = null;
  const button = element("button", { type: "button", class: "as-table", "aria-pressed": "false", "aria-label": `${title} as a table` }, "table");
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    made ??= body.appendChild(numbers(panel));
    button.setAttribute("aria-pressed", String(on));
    figure.hidden = on;
    made.hidden = !on;
  });
  body.closest(".panel").querySelector(".tools").prepend(button);
}

function numbers(panel) {
  const longest = panel.series.reduce((a, b) => (b.values.length > a.values.length ? b : a));
  const times = moments(longest);
  const every = Math.max(1, Math.ceil(times.length / 40));
  const rows = times.map((at, i) => [at, i]).filter(([, i]) => (times.length - 1 - i) % every === 0).reverse();
  const at = (one, ms) => one.values[Math.round((ms / 1000 - one.start) / one.step)] ?? null;
  return element("div", { class: "scroll", tabindex: "0" }, element("table", { class: "cells" },
    element("thead", {}, element("tr", {}, ...["time", ...panel.series.map((one) => one.name)].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map(([ms]) => element("tr", {}, element("th", { scope: "row" }, clock(ms)),
      ...panel.series.map((one) => element("td", {}, shown(at(one, ms), one.field).text)))))));
}

function valuesPanel(panel, body) {
  const { textMode = "auto", colorMode = "value" } = panel.options;
  const several = panel.values.length > 1;
  const name = textMode === "name" || textMode === "value_and_name" || (textMode === "auto" && several);
  const number = textMode !== "name" && textMode !== "none";
  const draw = () => body.replaceChildren(element("div", { class: several ? "values several" : "values" }, ...panel.values.map((one) => {
    const { text, color: paint } = shown(one.value, one.field);
    const big = number ? text : one.name;
    const made = element("div", { class: big.length > 12 || /\S{9}/.test(big) ? "value wordy" : "value" }, element("strong", {}, big), name && number ? element("span", {}, one.name) : null);
    if (colorMode.startsWith("background")) made.classList.add("filled");
    if (paint) made.style.setProperty("--paint", paint);
    return made;
  })));
  draw();
  return draw;
}

function tablePanel(panel, body) {
  let order = panel.sort[0] ? { at: panel.columns.findIndex((one) => one.name === panel.sort[0].column), desc: panel.sort[0].desc } : null;
  const draw = () => {
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.at : null;
    body.replaceChildren(grid(panel, order, (at) => {
      order = { at, desc: order?.at === at ? !order.desc : !panel.columns[at].text };
      draw();
    }));
    if (focused) body.querySelector(`[data-at="${focused}"]`)?.focus();
  };
  draw();
  return draw;
}

const plain = (cell) => (cell !== null && typeof cell === "object" ? cell.value : cell);

function grid(panel, order, sortBy) {
  const head = panel.columns.map((one, at) => {
    const way = order?.at === at ? (order.desc ? "descending" : "ascending") : null;
    const button = element("button", { type: "button", onclick: () => sortBy(at) }, one.name, element("span", { "aria-hidden": "true" }, way ? (order.desc ? " ▾" : " ▴") : ""));
    button.dataset.at = String(at);
    return element("th", { scope: "col", "aria-sort": way, class: one.text ? "text" : "" }, button);
  });
  const rows = [...panel.rows];
  if (order && order.at >= 0) rows.sort((a, b) => compare(plain(a[order.at]), plain(b[order.at]), order.desc));
  return element("div", { class: "scroll", tabindex: "0" }, element("table", { class: "cells" }, element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, at) => tableCell(cell, panel.columns[at])))))));
}

/** Empty cells are last, whichever way. */
function compare(a, b, desc) {
  const rank = (value) => (value === "+Inf" ? Infinity : value === "-Inf" ? -Infinity : value);
  const [x, y] = [rank(a), rank(b)];
  if (x === null || y === null || x === undefined || y === undefined) return (x ?? null) === null ? ((y ?? null) === null ? 0 : 1) : -1;
  const way = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y), undefined, { numeric: true }) : x - y;
  return desc ? -way : way;
}

function tableCell(cell, column) {
  const value = plain(cell);
  const { text, color: paint } = value === null || value === undefined ? { text: mapped(null, column.field)?.text ?? "–", color: null } : shown(value, column.field);
  const links = cell !== null && typeof cell === "object" ? cell.links : [];
  const made = element(column === null ? "th" : "td", { class: column.text ? "text" : "" }, links.length ? element("a", { href: links[0].href, title: links[0].title }, text) : text);
  const kind = column.field.custom?.cellOptions?.type ?? column.field.custom?.displayMode ?? "auto";
  if (paint && kind.startsWith("color-background")) {
    made.classList.add("filled");
    made.style.setProperty("--paint", paint);
  } else if (paint && kind === "color-text") made.style.color = paint;
  return made;
}
