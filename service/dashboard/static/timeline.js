/* A study's attempts over time: a row for each worker (more where it trains several at once), a bar for each attempt. */
"use strict";
(() => {
  const figure = document.querySelector("[data-timeline]"), box = figure.querySelector(".plot");
  const ROW = 20, GAP = 4, TOP = 8, BOTTOM = 34, LEAST = 300, UNITS = [["days", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const STATES = { COMPLETE: "complete", PRUNED: "pruned", FAIL: "failed", RUNNING: "running", INTERRUPTED: "interrupted", LOST: "lost" };
  const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  let found = null;

  function rowsOf(attempts) {
    const rows = new Map();
    for (const one of attempts) {
      const worker = one.node ? [one.node, one.device].filter(Boolean).join(" ") : "not reported";
      const key = `${worker} \u0000${String(one.lane).padStart(4, "0")}`;
      if (!rows.has(key)) rows.set(key, { worker, lane: one.lane, attempts: [] });
      rows.get(key).attempts.push(one);
    }
    return [...rows].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true })).map(([, row]) => row);
  }

  const varies = (one) => one.stage === "sensitivity"; // such a run belongs to no trial

  function told(one) {
    const seconds = (one.end - one.begin) / 1000, [unit, size] = UNITS.find(([, size]) => seconds >= size) || UNITS[3];
    const nth = one.attempt > 1 ? `, attempt ${one.attempt}` : "", seed = one.stage === "search" ? "" : `, ${one.stage} run with seed ${one.seed}`;
    return `${one.label}${varies(one) ? "" : `, trial ${one.trial}`}${seed}${nth}: ${STATES[one.state]}, ${Charts.number(Number((seconds / size).toPrecision(3)))} ${unit}, started ${clock.format(one.begin)}`;
  }

  function draw() {
    if (!found) return;
    if (!found.attempts.length) return Charts.say(box, "No run has started.");
    const attempts = found.attempts.map((one) => ({ ...one, begin: new Date(one.started_at), end: new Date(one.finished_at || found.now) }));
    const rows = rowsOf(attempts), narrow = box.clientWidth < 600, left = narrow ? 96 : 200, right = 14;
    const width = Math.max(LEAST, box.clientWidth), height = TOP + rows.length * (ROW + GAP) + BOTTOM;
    const low = Math.min(...attempts.map((one) => one.begin.getTime())), high = Math.max(low + 1000, ...attempts.map((one) => one.end.getTime()));
    const px = (time) => left + ((time - low) / (high - low)) * (width - left - right);
    const svg = Svg.draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Attempts of runs by worker and time" });
    const [unit, size] = UNITS.find(([, size]) => high - low >= 2000 * size) || UNITS[3], length = (high - low) / 1000 / size;
    const step = [0.5, 1, 2, 5, 10, 15, 30, 60].find((one) => length / one <= (narrow ? 5 : 10)) || Math.ceil(length / 10);
    for (let t = 0; t <= length; t += step) {
      const x = px(low + 1000 * size * t);
      svg.append(Svg.draw("line", { class: "tick", x1: x, x2: x, y1: TOP, y2: height - BOTTOM }), Svg.draw("text", { x, y: height - BOTTOM + 14, "text-anchor": "middle" }, String(t)));
    }
    svg.append(Svg.draw("text", { class: "name", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, `${unit} since ${clock.format(low)}`));
    const most = Math.floor((left - 8) / 6);
    rows.forEach((row, k) => {
      const y = TOP + k * (ROW + GAP);
      if (!k || rows[k - 1].worker !== row.worker) {
        const name = Svg.draw("text", { x: 0, y: y + 14 }, row.worker.length > most ? "…" + row.worker.slice(1 - most) : row.worker);
        name.append(Svg.draw("title", {}, row.worker));
        svg.append(name);
      }
      for (const one of row.attempts) {
        const title = told(one), x = px(one.begin.getTime());
        const bar = Svg.draw("rect", { class: `span ${STATES[one.state]}${one.stage === "search" ? "" : " confirm"}`, x: x.toFixed(1), y, width: Math.max(2, px(one.end.getTime()) - x).toFixed(1), height: ROW, rx: 2 });
        bar.append(Svg.draw("title", {}, title));
        const href = varies(one) ? "#sensitivity" : `${figure.dataset.trials}${encodeURIComponent(one.label)}/${one.trial}`;
        svg.append(Svg.draw("a", { href, "aria-label": title, tabindex: attempts.length > 60 ? -1 : 0 }, bar));
      }
    });
    svg.addEventListener("pointermove", (event) => Charts.tip(event.target.classList.contains("span") ? event.target.textContent : "", event));
    svg.addEventListener("pointerleave", () => Charts.tip(""));
    const key = Object.assign(document.createElement("p"), { className: "key quiet" });
    for (const name of [...new Set(attempts.map((one) => STATES[one.state]))]) {
      const swatch = Svg.draw("svg", { class: "swatch", width: 14, height: 9, viewBox: "0 0 14 9" }, Svg.draw("rect", { class: "span " + name, width: 14, height: 9 }));
      const item = document.createElement("span");
      item.append(swatch, Object.assign(document.createElement("b"), { textContent: name }));
      key.append(item);
    }
    if (attempts.some((one) => one.stage !== "search")) key.append("outlined: confirm and sensitivity runs");
    box.replaceChildren(svg, key);
  }

  async function load() {
    try {
      const answer = await fetch(figure.dataset.source);
      if (!answer.ok) throw new Error(answer.status);
      found = await answer.json();
      draw();
    } catch (error) {
      if (!found) Charts.say(box, "The data could not be loaded; reload the page.");
      console.warn(error);
    }
  }

  document.addEventListener("admeta:changed", load);
  Charts.onRedraw(draw);
  load();
})();
