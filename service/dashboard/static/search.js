/* The trials of one search, read once for all figures (Search.onData). Draws the history and the importance. */
"use strict";
const Search = (() => {
  const root = document.querySelector("[data-history]");
  const part = (name) => document.querySelector(`[data-part=${name}]`);
  const REST_MS = 30000; // importance costs the server seconds
  const drawers = [];
  let found = null, weighedAt = 0;

  /* Share of complete trials that are no better, 1 for the best; null where the trial is not complete. */
  function merits() {
    const sign = found.direction === "maximize" ? 1 : -1;
    const complete = found.number.map((_, i) => i).filter((i) => found.state[i] === "COMPLETE" && found.value[i] !== null);
    complete.sort((a, b) => sign * (found.value[a] - found.value[b]));
    const merit = found.number.map(() => null);
    complete.forEach((i, place) => { merit[i] = complete.length < 2 ? 1 : place / (complete.length - 1); });
    const pruned = found.number.map((_, i) => i).filter((i) => found.state[i] === "PRUNED" && found.value[i] !== null);
    return { merit, complete, pruned };
  }

  /* The text shown at one trial. */
  const told = (i) => `trial ${found.number[i]}, ${found.state[i].toLowerCase()}: ${Charts.number(found.value[i])}`;
  const settings = (i) => Object.entries(found.params).filter(([, values]) => values[i] != null).map(([name, values]) => `${name} ${typeof values[i] === "number" ? Charts.number(values[i]) : JSON.stringify(values[i])}`);

  /* Shapes of a trial have its index as data-trial; the one pointed at stands out in every figure. */
  let marked = null, chosen = null;
  function mark(i) {
    if (i === marked) return;
    for (const node of document.querySelectorAll("[data-trial].hit")) node.classList.remove("hit");
    marked = i;
    if (i !== null) for (const node of document.querySelectorAll(`[data-trial="${i}"]`)) node.classList.add("hit");
  }

  /* Points at trials of an SVG: `nearest` gives the index of the trial at a place of its drawing, or null. */
  function follow(svg, nearest) {
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
      const i = event.buttons ? null : nearest(((event.clientX - box.left) * view.width) / box.width, ((event.clientY - box.top) * view.height) / box.height);
      mark(i);
      Charts.tip(i === null ? "" : [told(i), ...settings(i)].join("\n"), event);
      svg.classList.toggle("pointing", i !== null);
    });
    svg.addEventListener("pointerleave", () => { mark(null); Charts.tip(""); });
    svg.addEventListener("click", (event) => { if (marked !== null && !event.target.closest("a, .axis")) location.href = root.dataset.trials + found.number[marked]; });
  }

  /* The nearest of the points [i, x, y] that is within reach. */
  function among(points) {
    return (x, y) => {
      let best = null, least = 20 ** 2;
      for (const [i, px, py] of points) { const far = (px - x) ** 2 + (py - y) ** 2; if (far < least) { best = i; least = far; } }
      return best;
    };
  }

  /* Choose trials in every figure and in the table: a set of their indices, or null for all. */
  function choose(some) {
    chosen = some;
    fade();
    document.dispatchEvent(new Event("search:chosen"));
  }
  function fade() {
    for (const node of document.querySelectorAll("[data-trial]")) node.classList.toggle("faded", chosen !== null && !chosen.has(Number(node.dataset.trial)));
  }

  /* A note under a figure that does not draw all trials. */
  function thinned(shown, all) {
    if (shown === all) return [];
    return [Object.assign(document.createElement("p"), { className: "quiet", textContent: `The best ${shown} of ${all} are drawn; the data has all.` })];
  }

  function history() {
    const box = part("history").querySelector(".plot");
    if (!found.number.length) return Charts.say(box, "No trial has started.");
    const of = (state) => found.value.map((value, i) => (found.state[i] === state ? value : null));
    const dots = (stroke, fill) => ({ stroke, width: 0, paths: () => null, points: { show: true, size: 7, width: 1.5, stroke, fill } });
    Charts.plot(box, {
      x: "trial", y: found.metric, integerX: true, logY: Charts.isLog(part("history")), hooks: { setCursor: [(u) => mark(u.cursor.idx ?? null)] }, data: [found.number, of("COMPLETE"), of("PRUNED"), of("RUNNING"), found.best],
      series: [
        { label: "complete", ...dots(Charts.css("--accent"), Charts.css("--accent")) },
        { label: "pruned", ...dots(Charts.css("--quiet"), Charts.css("--card")) },
        { label: "running", ...dots(Charts.css("--warn"), Charts.css("--card")) },
        { label: "best so far", stroke: Charts.css("--bad"), width: 2, stepped: true, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) },
      ],
    });
  }

  async function importance() {
    const figure = part("importance"), box = figure.querySelector(".plot");
    const answer = await fetch(figure.dataset.source), body = await answer.json();
    if (!answer.ok) return Charts.say(box, Charts.told(body));
    const mine = body.find((one) => one.label === figure.dataset.label);
    if (!mine || mine.reason) return Charts.say(box, mine ? mine.reason : "There is no result for this search.");
    const list = document.createElement("dl");
    for (const [name, share] of Object.entries(mine.shares)) {
      const [low, high] = (mine.intervals[name] || [share, share]).map((end) => 100 * end);
      const whisker = { class: "whisker", y1: "50%", y2: "50%", x1: low + "%", x2: high + "%" };
      const bar = Svg.draw("svg", { class: "bar", "aria-hidden": "true" }, Svg.draw("rect", { class: "complete", width: 100 * share + "%", height: "100%" }), Svg.draw("line", whisker));
      const percent = `${Math.round(100 * share)} % (${Math.round(low)} to ${Math.round(high)})`;
      const cells = [["dt", name], ["dd", bar], ["dd", percent]].map(([tag, content]) => { const node = document.createElement(tag); node.append(content); return node; });
      cells[2].className = "num";
      list.append(...cells);
    }
    const method = Object.assign(document.createElement("p"), { className: "quiet", textContent: `${mine.method}, from ${mine.n_trials} trials, ${mine.n_complete} of them complete; 90 % intervals` });
    box.replaceChildren(list, method);
  }

  function drawAll() {
    if (!found) return;
    history();
    const ranked = merits();
    for (const draw of drawers) draw(found, ranked);
    fade();
  }

  function onData(draw) {
    drawers.push(draw);
    if (found) draw(found, merits());
  }

  async function load() {
    try {
      const answer = await fetch(root.dataset.history);
      if (!answer.ok) throw new Error(answer.status);
      found = await answer.json();
      drawAll();
      if (Date.now() - weighedAt > REST_MS) {
        weighedAt = Date.now();
        await importance();
      }
    } catch (error) {
      if (!found) for (const box of document.querySelectorAll("[data-part] .plot")) Charts.say(box, "The data could not be loaded; reload the page.");
      console.warn(error);
    }
  }

  document.addEventListener("admeta:changed", load);
  document.addEventListener("DOMContentLoaded", load); // the other figures' scripts have run by then
  part("history").querySelector(".controls").addEventListener("change", () => found && history());
  Charts.onRedraw(drawAll);
  return { root, part, onData, told, thinned, follow, among, choose, fade, isChosen: (i) => chosen === null || chosen.has(i) };
})();
