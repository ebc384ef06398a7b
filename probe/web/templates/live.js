// Refreshes the page every few seconds without losing focus, scroll position or open details.
(() => {
  "use strict";
  const EVERY_MS = 5000;
  const say = (text) => { const place = document.getElementById("fresh"); if (place) place.textContent = text; };
  let paused = false;
  const narrow = matchMedia("(max-width: 40rem)").matches;

  /** Whether a refresh would disturb the reader: hidden page, pause, selected text, or a chart in use. */
  const busy = () => document.hidden || paused || !getSelection().isCollapsed || document.querySelector(".chart:hover, .chart:focus") !== null;

  async function renew() {
    if (busy()) return;
    let text;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      text = await answer.text();
    } catch (error) {
      say(`cannot refresh: ${error.message}`);
      return;
    }
    if (busy()) return;
    replace(new DOMParser().parseFromString(text, "text/html"));
  }

  function replace(fresh) {
    const [now, next] = [document.getElementById("main"), fresh.getElementById("main")];
    if (!next) return;
    const open = new Map([...now.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
    const scrolled = [...now.querySelectorAll(".tall, .scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const focus = now.contains(document.activeElement) ? trail(document.activeElement, now) : null;
    // Elements with data-keep have state of their own.
    const keep = [...now.querySelectorAll("[data-keep]")];
    next.querySelectorAll("[data-keep]").forEach((place, i) => keep[i] && place.replaceWith(keep[i]));
    now.replaceChildren(...next.childNodes);
    for (const one of now.querySelectorAll("details[id]")) one.open = open.get(one.id) ?? (one.open && !narrow);
    now.querySelectorAll(".tall, .scroll").forEach((one, i) => scrolled[i] && one.scrollTo(...scrolled[i]));
    if (focus) follow(focus, now)?.focus({ preventScroll: true });
    for (const id of ["data", "fresh"]) {
      const [mine, its] = [document.getElementById(id), fresh.getElementById(id)];
      if (mine && its) mine.textContent = its.textContent;
    }
    document.querySelector("h1").replaceChildren(...fresh.querySelector("h1").childNodes);
    find();
    document.dispatchEvent(new Event("kneewatch-new-data"));
  }

  /** Return the path to an element: its id, its link, or its child indexes (the new page mostly has the same shape). */
  function trail(element, root) {
    if (element.id) return [element.id];
    if (element.tagName === "A") return [`a[href="${CSS.escape(element.getAttribute("href"))}"]`];
    const found = [];
    for (let at = element; at !== root; at = at.parentElement) found.unshift([...at.parentElement.children].indexOf(at));
    return found;
  }

  function follow(found, root) {
    if (typeof found[0] !== "string") return found.reduce((at, place) => at?.children[place], root);
    return document.getElementById(found[0]) ?? (found[0].startsWith("a[") ? root.querySelector(found[0]) : null);
  }

  function find() {
    const words = document.getElementById("find")?.value.trim().toLowerCase() ?? "";
    let shown = 0;
    const rows = document.querySelectorAll(".targets tbody tr");
    for (const row of rows) {
      row.hidden = !row.dataset.find.includes(words);
      shown += row.hidden ? 0 : 1;
    }
    const more = document.getElementById("more-targets");
    if (more && words) more.open = true;
    const none = document.getElementById("none");
    if (none) none.hidden = shown > 0 || rows.length === 0;
  }

  async function probe(button) {
    const answer = document.getElementById("answer");
    button.disabled = true;
    answer.className = "answer";
    answer.textContent = "sent, waiting for the answer";
    try {
      const reply = await fetch(button.dataset.probe);
      const text = await reply.text();
      const value = (name) => { const found = text.match(new RegExp(`^${name}(?:\\{[^}]*\\})? (.+)$`, "m")); return found && Number(found[1]); };
      const ms = (seconds) => (seconds === null ? "-" : seconds >= 1 ? `${seconds.toPrecision(3)} s` : `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`);
      if (!reply.ok) answer.textContent = text.trim();
      else if (value("probe_success") === 1) answer.textContent = `ok: TTFT ${ms(value("probe_ttft_seconds"))}, TPOT ${ms(value("probe_tpot_seconds"))}, E2E ${ms(value("probe_e2e_seconds"))}`;
      else answer.textContent = `failed: ${text.match(/^# reason: (.+)$/m)?.[1] ?? "no reason known"}`;
      if (!reply.ok || value("probe_success") !== 1) answer.classList.add("problem");
    } catch (error) {
      answer.textContent = `no answer from Kneewatch (${error.message})`;
      answer.classList.add("problem");
    }
    button.disabled = false;
  }

  // A narrow screen shows the headings first, each a touch away.
  if (narrow) for (const one of document.querySelectorAll("details.fold")) one.open = false;
  for (const id of ["find", "pause", "probe"]) document.getElementById(id)?.removeAttribute("hidden");
  document.getElementById("find")?.addEventListener("input", find);
  document.getElementById("pause")?.addEventListener("click", ({ currentTarget: button }) => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
  });
  document.getElementById("probe")?.addEventListener("click", ({ currentTarget: button }) => probe(button));
  find();
  setInterval(renew, EVERY_MS);
})();
