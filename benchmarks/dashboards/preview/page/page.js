// The page: each panel's data drawn into its place.

const DRAW = { lines: chartPanel, states: chartPanel, heatmap: chartPanel, points: chartPanel, values: valuesPanel, table: tablePanel };
const again = [];

function marks() {
  const events = data.events.filter((event) => event.marks.length);
  if (!events.length) return;
  const place = document.getElementById("events");
  place.append("marked: ", ...events.map((event) => {
    const button = element("button", { type: "button", "aria-pressed": String(event.shown) }, dot(color(event.color)), `${event.name} (${event.marks.length})`);
    button.addEventListener("click", () => {
      event.shown = !event.shown;
      button.setAttribute("aria-pressed", String(event.shown));
      again.forEach((draw) => draw());
    });
    return button;
  }));
}

for (const [id, panel] of Object.entries(data.panels)) {
  const place = document.getElementById(id);
  again.push(DRAW[panel.kind](panel, place.querySelector(".body"), place.querySelector("h3").textContent));
}
marks();
for (const time of document.querySelectorAll("time")) time.textContent = clock(Number(time.dataset.s) * 1000);
document.getElementById("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
dark.addEventListener("change", () => location.reload());
// A description is open until the next click elsewhere, or Escape.
document.addEventListener("click", (event) => close(event.target));
document.addEventListener("keydown", (event) => event.key === "Escape" && close(null));
function close(except) {
  for (const one of document.querySelectorAll("details.about[open]")) if (!one.contains(except)) one.open = false;
}
