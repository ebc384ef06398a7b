// Reads the dashboards in a folder with Grafana's own packages: `npm install --ignore-scripts && npm run check`.
//
// Proven: options and field configurations of every panel have Grafana 10.4's types; every unit is one of Grafana's;
// its parser of PromQL reads every query; its transformations turn Prometheus' answers into the columns and the points
// that the panels name; its value mappings give the words. Not proven: that a panel is drawn, which only a Grafana does.

import { createRequire } from "node:module";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const require = createRequire(import.meta.url);
const grafana = require("@grafana/data");
const { parser } = require("@prometheus-io/lezer-promql");
globalThis.window ??= {}; // after loading, which would look for a document in it
globalThis.navigator ??= { languages: ["en-US"] };
const ts = require("typescript");
const { firstValueFrom } = require("rxjs");

const folder = resolve(process.argv[2] ?? "../../../dashboards/generated");
const dashboards = readdirSync(folder).filter((name) => name.endsWith(".json"))
  .map((name) => JSON.parse(readFileSync(join(folder, name), "utf8")));
const panels = dashboards.flatMap((one) => one.panels.flatMap((panel) => [panel, ...(panel.panels ?? [])])
  .filter((panel) => panel.type !== "row").map((panel) => ({ ...panel, where: `${one.title}: ${panel.title}` })));
const problems = [];
const check = (holds, words) => holds || problems.push(words);

// The names of Grafana's panels by their types: folders of @grafana/schema.
const FOLDERS = { "state-timeline": "statetimeline" };
const NAMES = { timeseries: "TimeSeries", stat: "Stat", heatmap: "Heatmap", table: "Table", xychart: "XYChart", statetimeline: "StateTimeline" };

/** Compile each panel's options and custom fields as literals of Grafana's types: unknown keys and wrong values are errors. */
function types() {
  const work = mkdtempSync(join(import.meta.dirname, "node_modules/.types-"));
  const known = (kind) => `@grafana/schema/dist/esm/raw/composable/${kind}/panelcfg/x/${NAMES[kind]}PanelCfg_types.gen`;
  // Enumerations are strings in JSON.
  const loose = "type Loose<T> = T extends string | number | boolean | null | undefined ? (T extends string ? T | `${T}` : T extends number ? T | number : T) : T extends Array<infer U> ? Array<Loose<U>> : { [K in keyof T]?: Loose<T[K]> };\n";
  const files = panels.map((panel, i) => {
    const kind = FOLDERS[panel.type] ?? panel.type;
    const custom = panel.fieldConfig.defaults.custom ?? {};
    const file = join(work, `panel${i}.ts`);
    const fields = kind === "table" || kind === "stat" ? "" : `export const custom: Loose<panel.FieldConfig> = ${JSON.stringify(custom)};\n`;
    writeFileSync(file, `import type * as panel from "${known(kind)}";\n${loose}export const options: Loose<panel.Options> = ${JSON.stringify(panel.options)};\n${fields}`);
    return file;
  });
  const program = ts.createProgram(files, { noEmit: true, strict: true, skipLibCheck: true, module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler, target: ts.ScriptTarget.ES2022 });
  for (const one of ts.getPreEmitDiagnostics(program)) {
    const at = Number(/panel(\d+)\.ts/.exec(one.file?.fileName ?? "")?.[1] ?? -1);
    problems.push(`${panels[at]?.where ?? "types"}: ${ts.flattenDiagnosticMessageText(one.messageText, " ")}`);
  }
  rmSync(work, { recursive: true });
  return files.length;
}

function units() {
  const known = new Set(grafana.getValueFormats().flatMap((group) => group.submenu.map((one) => one.value)));
  const used = panels.flatMap((panel) => [panel.fieldConfig.defaults.unit,
    ...(panel.fieldConfig.overrides ?? []).flatMap((one) => one.properties.filter((each) => each.id === "unit").map((each) => each.value))]
    .map((unit) => [unit, panel.where]));
  for (const [unit, where] of used) check(known.has(unit), `${where}: no unit ${unit}`);
  return new Set(used.map(([unit]) => unit)).size;
}

/** Parse with the grammar that Grafana's query editor has, the variables replaced by values as Grafana does. */
function queries() {
  const all = [...panels.flatMap((panel) => panel.targets.map((target) => [target.expr, panel.where])),
    ...dashboards.flatMap((one) => one.annotations.list.map((mark) => [mark.expr, `${one.title}: ${mark.name}`]))];
  for (const [expr, where] of all) {
    const filled = expr.replace(/\$__(rate_interval|interval)\b/g, "1m").replace(/\$__range\b/g, "3h").replace(/\$[a-z]\w*/g, "x");
    parser.parse(filled).iterate({ enter: (node) => { check(!node.type.isError, `${where}: not PromQL at ${filled.slice(node.from, node.from + 40)}`); } });
  }
  return all.length;
}

/** Return a frame as Grafana's Prometheus data source makes it of one series of a range query, or of an instant one. */
function frame(target, labels, times, values) {
  const name = target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? "");
  if (target.format === "table") {
    return grafana.toDataFrame({ refId: target.refId, fields: [
      { name: "Time", type: "time", values: values.map(() => times[0]) },
      { name: "target", type: "string", values: labels.map((one) => one.target) },
      { name: `Value #${target.refId}`, type: "number", values },
    ] });
  }
  return grafana.toDataFrame({ refId: target.refId, name, fields: [
    { name: "Time", type: "time", values: times },
    { name: "Value", type: "number", values, labels, config: { displayNameFromDS: name } },
  ] });
}

async function transformed(panel, frames) {
  return firstValueFrom(grafana.transformDataFrame(panel.transformations ?? [], frames));
}

/** The table: a row for each target, the highest rank first, and the columns by their titles. */
async function table(panel) {
  const labels = [{ target: "a" }, { target: "b" }];
  const frames = panel.targets.map((target, i) => frame(target, labels, [1000], i === panel.targets.length - 1 ? [1, 9] : [10 + i, 20 + i]));
  const [made] = await transformed(panel, frames);
  const wanted = panel.fieldConfig.overrides.map((one) => one.matcher.options);
  const names = made.fields.map((field) => grafana.getFieldDisplayName(field, made, [made]));
  check(JSON.stringify(names) === JSON.stringify(wanted), `${panel.where}: columns ${names} and not ${wanted}`);
  check(JSON.stringify([...made.fields[0].values]) === '["b","a"]', `${panel.where}: the highest rank is not first`);
}

/** The points: one frame, whose fields have the names that the series look for, and only moments that all queries have. */
async function points(panel) {
  const times = [[1000, 2000, 3000], [1000, 2000, 3000], [2000, 3000]];
  const made = await transformed(panel, panel.targets.map((target, i) => frame(target, {}, times[i], times[i].map((at) => at + i))));
  check(made.length === 1, `${panel.where}: ${made.length} frames`);
  const names = made[0].fields.map((field) => grafana.getFieldDisplayName(field, made[0], made));
  for (const one of panel.options.series) {
    check(names.includes(one.x) && names.includes(one.y), `${panel.where}: ${one.x} over ${one.y} is not among ${names}`);
  }
  check(made[0].length === 2, `${panel.where}: ${made[0].length} moments`);
  const shown = grafana.applyFieldOverrides({ data: made, fieldConfig: panel.fieldConfig, replaceVariables: (text) => text, theme: grafana.createTheme(), fieldConfigRegistry: registry() });
  for (const field of shown[0].fields.filter((one) => one.type === "number")) {
    const isX = grafana.getFieldDisplayName(field, shown[0], shown) === panel.options.series[0].x;
    check(field.config.unit === (isX ? "short" : panel.fieldConfig.defaults.unit), `${panel.where}: unit ${field.config.unit}`);
  }
}

function registry() {
  const made = new grafana.FieldConfigOptionsRegistry();
  made.register({ id: "unit", path: "unit", name: "Unit", process: (value) => value, shouldApply: () => true, override: null, editor: null });
  return made;
}

/** The words of mappings: what Grafana writes instead of each value. */
function words(panel) {
  const mapped = [panel.fieldConfig.defaults.mappings ?? [],
    ...(panel.fieldConfig.overrides ?? []).flatMap((one) => one.properties.filter((each) => each.id === "mappings").map((each) => each.value))];
  let count = 0;
  for (const mappings of mapped) {
    const display = grafana.getDisplayProcessor({ field: { type: "number", config: { mappings } }, theme: grafana.createTheme() });
    for (const [value, result] of mappings.filter((one) => one.type === "value").flatMap((one) => Object.entries(one.options))) {
      check(display(Number(value)).text === result.text, `${panel.where}: ${value} is ${display(Number(value)).text} and not ${result.text}`);
      count += 1;
    }
  }
  return count;
}

// A transformation is there by its old name, too.
grafana.standardTransformersRegistry.setInit(() => [...new Set(Object.values(grafana.standardTransformers))]
  .map((transformation) => ({ id: transformation.id, name: transformation.name, transformation: () => Promise.resolve(transformation) })));
for (const panel of panels) {
  if (panel.type === "table") await table(panel);
  if (panel.type === "xychart") await points(panel);
}
const counts = { panels: types(), units: units(), queries: queries(), mappings: panels.reduce((sum, panel) => sum + words(panel), 0) };
for (const one of new Set(problems)) console.error(one);
console.log(`${Object.entries(counts).map(([what, count]) => `${count} ${what}`).join(", ")}; ${new Set(problems).size} problems`);
process.exit(problems.length ? 1 : 0);
