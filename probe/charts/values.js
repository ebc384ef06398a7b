// Numbers and words as Grafana's fields say: units, value mappings, thresholds, colours.

const dark = matchMedia("(prefers-color-scheme: dark)");
const THEMES = {
  light: {
    ink: "#1c2330", soft: "#5b6678", line: "#dde1e8", card: "#ffffff", heat: ["#fdf0e1", "#f6a04d", "#9c3a00"],
    named: { green: "#2f7d4f", yellow: "#a67c00", orange: "#b06f00", red: "#b3261e", blue: "#1f5fbf", purple: "#7a3fb0",
      text: "#5b6678", white: "#ffffff", black: "#1c2330", gray: "#5b6678", transparent: "transparent" },
    palette: ["#1f5fbf", "#c2700a", "#2e8b57", "#8a4fbf", "#0a8a94", "#c43d84", "#7d7a12", "#8a5a3c", "#5a6b86", "#5f9e1f"],
  },
  dark: {
    ink: "#e4e8ef", soft: "#9aa6b8", line: "#2c3542", card: "#1a2029", heat: ["#2b2620", "#c2700a", "#ffd9a0"],
    named: { green: "#59b57e", yellow: "#e6c84a", orange: "#e0a23a", red: "#ef6f66", blue: "#7fb0ff", purple: "#c39bf0",
      text: "#9aa6b8", white: "#ffffff", black: "#12161d", gray: "#9aa6b8", transparent: "transparent" },
    palette: ["#6ea8ff", "#f2a33c", "#63c48b", "#c39bf0", "#4cc9d3", "#f283b6", "#cfc84a", "#cf9f7d", "#9db0cf", "#a8d95f"],
  },
};
const theme = () => (dark.matches ? THEMES.dark : THEMES.light);

/** A colour by Grafana's name for it, such as semi-dark-red; else the text, which is CSS. */
function color(name) {
  return theme().named[String(name).replace(/^(semi-dark|dark|super-light|light)-/, "")] ?? String(name);
}

/** Three digits that count, or as many decimals as are asked for; nothing is -0. */
function digits(value, decimals) {
  const size = Math.abs(value);
  const text = typeof decimals === "number" ? value.toFixed(decimals)
    : size === 0 ? "0"
      : size < 0.001 ? value.toPrecision(2)
        : String(Number(value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size))))));
  return Number(text) === 0 ? text.replace("-", "") : text;
}

const SPANS = [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]];

function duration(seconds, decimals) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  let [span, name] = SPANS[0];
  for (const one of SPANS) if (size >= one[0] * 0.9995) [span, name] = one;
  return `${digits(seconds / span, decimals)} ${name}`;
}

function scaled(value, suffix, base, names, decimals) {
  let step = 0;
  while (Math.abs(value) >= base * 0.9995 && step < names.length - 1) {
    value /= base;
    step += 1;
  }
  const unit = `${names[step]}${suffix.trimStart()}`;
  return unit ? `${digits(value, decimals)} ${unit}` : digits(value, decimals);
}

function percent(value, decimals) {
  const text = digits(value, decimals);
  // 99.97 % is not 100 %, and whoever reads an objective wants to know.
  return text === "100" && value < 100 && decimals === undefined ? String(Number(value.toFixed(3))) : text;
}

function moment(ms, unit) {
  if (unit.ago) return `${duration(Math.abs(data.now * 1000 - ms) / 1000)} ${ms > data.now * 1000 ? "ahead" : "ago"}`;
  return clock(ms);
}

/** Date and time, as the reader's own clock says. */
function clock(ms) {
  const at = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** The value with its unit. */
function written(value, field) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  const unit = data.units[field.unit ?? "none"] ?? { kind: "plain" };
  const number = value * (unit.scale ?? 1);
  switch (unit.kind) {
    case "duration": return duration(number, field.decimals);
    case "si": return scaled(number, unit.suffix ?? "", 1000, ["", "k", "M", "G", "T", "P"], field.decimals);
    case "binary": return scaled(number, unit.suffix ?? "", 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi"], field.decimals);
    case "scaled": return (unit.suffix === " %" ? percent : digits)(number, field.decimals) + unit.suffix;
    case "moment": return moment(value, unit);
    case "word": return unit.words[value ? 1 : 0];
    default: return `${unit.prefix ?? ""}${digits(number, field.decimals)}${unit.suffix ?? ""}`;
  }
}

function mapped(value, field) {
  for (const mapping of field.mappings ?? []) {
    const options = mapping.options ?? {};
    if (mapping.type === "value") {
      const found = options[String(value)];
      if (found) return found;
    } else if (mapping.type === "range" && typeof value === "number") {
      if (value >= (options.from ?? -Infinity) && value <= (options.to ?? Infinity)) return options.result;
    } else if (mapping.type === "regex" && typeof value === "string") {
      const pattern = /^\/(.*)\/(\w*)$/.exec(options.pattern);
      if (pattern && new RegExp(pattern[1], pattern[2]).test(value)) return options.result;
    } else if (mapping.type === "special") {
      const kind = value === null || value === undefined ? "null" : value === "NaN" ? "nan" : String(value);
      if (options.match === kind || (options.match === "null+nan" && (kind === "null" || kind === "nan"))) return options.result;
    }
  }
  return null;
}

function threshold(value, field) {
  const number = value === "+Inf" ? Infinity : value === "-Inf" ? -Infinity : value;
  if (typeof number !== "number") return null;
  const { steps = [], mode } = field.thresholds ?? {};
  const [low, high] = [field.min ?? 0, field.max ?? 100];
  let found = null;
  for (const step of steps) {
    const from = mode === "percentage" && step.value !== null ? low + ((high - low) * step.value) / 100 : step.value;
    if (from === null || from === undefined || number >= from) found = step.color;
  }
  return found && color(found);
}

/** What a value is shown as: a text, and a colour where one is said. */
function shown(value, field) {
  const found = mapped(value, field);
  const own = found?.color ? color(found.color) : null;
  const fixed = field.color?.mode === "fixed" ? color(field.color.fixedColor) : null;
  return { text: found?.text || written(value, field), color: own ?? fixed ?? threshold(value, field) };
}

const there = (values) => values.filter((value) => value !== null);
const CALCS = {
  lastNotNull: ["last", (values) => there(values).at(-1) ?? null],
  last: ["last", (values) => values.at(-1) ?? null],
  max: ["max", (values) => there(values).reduce((a, b) => Math.max(a, b), -Infinity)],
  min: ["min", (values) => there(values).reduce((a, b) => Math.min(a, b), Infinity)],
  mean: ["mean", (values) => there(values).reduce((a, b) => a + b, 0) / there(values).length],
  sum: ["sum", (values) => there(values).reduce((a, b) => a + b, 0)],
};

/** An element with its attributes and children; text is text, whatever it says. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const frame = (option) => ({
  animation: false,
  textStyle: { fontFamily: "inherit" },
  grid: { left: 6, right: 26, top: 10, bottom: 4, containLabel: true },
  ...option,
});

function dot(paint) {
  const made = element("span", { class: "dot", "aria-hidden": "true" });
  made.style.backgroundColor = paint;
  return made;
}

function tooltip(option) {
  return {
    confine: true, transitionDuration: 0, padding: 8, borderWidth: 1, extraCssText: "max-width:28rem;white-space:normal",
    backgroundColor: theme().card, borderColor: theme().line, textStyle: { color: theme().ink, fontSize: 12 }, ...option,
  };
}
