/* A search's drawings from its history: one reading, four figures. Many trials are thinned for the SVG ones, and it says so. */
"use strict";
(() => {
  const MOST_DOTS = 1500, MOST_LINES = 400;
  const root = document.querySelector("[data-history]");
  const part = (name) => root.querySelector(`[data-part=${name}]`);
  const draw = Svg.draw;
  const REST_MS = 30000; // importance costs the server seconds
  let found = null, weighedAt = 0;

  /* A scale of one column: numbers (logarithmic where they span two decades), otherwise categories. */
  function scaleOf(values) {
    const known = values.filter((value) => value !== null && value !== undefined);
    if (known.every((value) => typeof value === "number")) {
      const low = Math.min(...known), high = Math.max(...known);
      const log = low > 0 && high / low >= 20;
      const f = log ? Math.log10 : (value) => value;
      const at = (value) => (high === low ? 0.5 : (f(value) - f(low)) / (f(high) - f(low)));
      const inner = [0, 0.25, 0.5, 0.75, 1].map((s) => (log ? 10 ** (f(low) + s * (f(high) - f(low))) : low + s * (high - low)));
      return { at, ticks: high === low ? [[0.5, Charts.number(low)]] : inner.map((value) => [at(value), Number(value.toPrecision(2)).toString()]), log };
    }
    const names = [...new Set(known.map((value) => JSON.stringify(value)))].sort();
    const at = (value) => (names.length < 2 ? 0.5 : names.indexOf(JSON.stringify(value)) / (names.length - 1));
    return { at, ticks: names.map((name) => [at(JSON.parse(name)), name.replaceAll('"', "")]), log: false };
  }

  /* Share of complete trials that are no better, 1 for the best; null where the trial is not complete. */
  function merits() {
    const sign = found.direction === "maximize" ? 1 : -1;
    const complete = found.number.map((_, i) => i).filter((i) => found.state[i] === "COMPLETE" && found.value[i] !== null);
    complete.sort((a, b) => sign * (found.value[a] - found.value[b]));
    const merit = found.number.map(() => null);
    complete.forEach((i, place) => { merit[i] = complete.length < 2 ? 1 : place / (complete.length - 1); });
    return { merit, complete };
  }

  function history() {
    const box = part("history").querySelector(".plot");
    if (!found.number.length) return Charts.say(box, "No trial has begun.");
    const of = (state) => found.value.map((value, i) => (found.state[i] === state ? value : null));
    const dots = (stroke, fill) => ({ stroke, width: 0, paths: () => null, points: { show: true, size: 7, width: 1.5, stroke, fill } });
    Charts.plot(box, {
      x: "trial", y: found.metric, data: [found.number, of("COMPLETE"), of("PRUNED"), of("RUNNING"), found.best],
      series: [
        { label: "complete", ...dots(Charts.css("--accent"), Charts.css("--accent")) },
        { label: "pruned", ...dots(Charts.css("--quiet"), Charts.css("--card")) },
        { label: "running", ...dots(Charts.css("--warn"), Charts.css("--card")) },
        { label: "best so far", stroke: Charts.css("--bad"), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) },
      ],
    });
  }

  function scatter() {
    const figure = part("scatter"), box = figure.querySelector(".plot"), names = Object.keys(found.params);
    const [x, y] = ["x", "y"].map((name, i) => {
      const select = figure.querySelector(`[name=${name}]`), kept = select.value;
      if (select.options.length !== names.length + 1) {
        select.replaceChildren(...names.map((one) => new Option(one)), new Option("value of " + found.metric, ""));
        select.value = names.includes(kept) ? kept : names[i] ?? "";
      }
      return select.value;
    });
    if (!found.number.length) return Charts.say(box, "No trial has begun.");
    const { merit } = merits(), column = (name) => found.params[name] || found.value;
    const W = 560, H = 300, left = 62, right = 12, top = 10, bottom = 44;
    const across = scaleOf(column(x)), up = scaleOf(column(y));
    const px = (s) => left + s * (W - left - right), py = (s) => H - bottom - s * (H - top - bottom);
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": `${x || found.metric} against ${y || found.metric}, a dot a trial` });
    svg.append(draw("rect", { class: "frame", x: left, y: top, width: W - left - right, height: H - top - bottom }));
    for (const [s, text] of across.ticks) svg.append(draw("text", { x: px(s), y: H - bottom + 16, "text-anchor": "middle" }, text));
    for (const [s, text] of up.ticks) svg.append(draw("text", { x: left - 7, y: py(s) + 4, "text-anchor": "end" }, text));
    svg.append(draw("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, (x || found.metric) + (across.log ? " (log)" : "")));
    svg.append(draw("text", { transform: `translate(12 ${(H - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, (y || found.metric) + (up.log ? " (log)" : "")));
    let order = found.number.map((_, i) => i).filter((i) => column(x)[i] != null && column(y)[i] != null);
    order.sort((a, b) => (merit[a] ?? -1) - (merit[b] ?? -1));
    const all = order.length;
    order = order.slice(-MOST_DOTS);
    for (const i of order) {
      const best = merit[i] === 1, dot = draw("circle", { class: "dot" + (merit[i] === null ? " out" : "") + (best ? " top" : ""), cx: px(across.at(column(x)[i])), cy: py(up.at(column(y)[i])), r: best ? 7 : 4.5, opacity: merit[i] === null ? 0.6 : 0.15 + 0.85 * merit[i] });
      const title = `trial ${found.number[i]}, ${found.state[i].toLowerCase()}: ${Charts.number(found.value[i])}`;
      dot.append(draw("title", {}, title));
      svg.append(draw("a", { href: root.dataset.trials + found.number[i], "aria-label": title, tabindex: all > 60 ? -1 : 0 }, dot));
    }
    box.replaceChildren(svg, ...thinned(order.length, all));
  }

  function thinned(shown, all) {
    if (shown === all) return [];
    return [Object.assign(document.createElement("p"), { className: "quiet", textContent: `The best ${shown} of ${all} are drawn; the data has all.` })];
  }

  function parallel() {
    const box = part("parallel").querySelector(".plot"), { merit, complete } = merits();
    if (!complete.length) return Charts.say(box, "No trial is complete yet.");
    const columns = [...Object.entries(found.params), [found.metric, found.value]];
    const W = 560, H = 300, top = 30, bottom = 14, side = 48;
    const scales = columns.map(([, values]) => scaleOf(complete.map((i) => values[i])));
    const px = (k) => side + (k * (W - 2 * side)) / Math.max(1, columns.length - 1), py = (s) => H - bottom - s * (H - top - bottom);
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Each complete trial's parameters and value; the data is linked below" });
    const drawn = complete.slice(-MOST_LINES);
    for (const i of drawn) {
      const points = columns.map(([, values], k) => (values[i] == null ? null : `${px(k).toFixed(1)},${py(scales[k].at(values[i])).toFixed(1)}`)).filter(Boolean);
      const line = draw("polyline", { class: "line" + (merit[i] === 1 ? " top" : ""), points: points.join(" "), opacity: 0.08 + 0.92 * merit[i] ** 2 });
      line.append(draw("title", {}, `trial ${found.number[i]}: ${Charts.number(found.value[i])}`));
      svg.append(line);
    }
    columns.forEach(([name], k) => {
      svg.append(draw("line", { class: "tick", x1: px(k), x2: px(k), y1: top, y2: H - bottom }));
      const last = k === columns.length - 1, anchor = last ? "end" : k === 0 ? "start" : "middle";
      svg.append(draw("text", { x: anchor === "middle" ? px(k) : last ? W : 0, y: 14, "text-anchor": anchor }, name + (scales[k].log ? " (log)" : "")));
      for (const [s, text] of scales[k].ticks) svg.append(draw("text", { x: last ? px(k) + 5 : px(k) - 5, y: py(s) + 4, "text-anchor": last ? "start" : "end" }, text));
    });
    box.replaceChildren(svg, ...thinned(drawn.length, complete.length));
  }

  async function importance() {
    const figure = part("importance"), box = figure.querySelector(".plot");
    const answer = await fetch(figure.dataset.source), body = await answer.json();
    if (!answer.ok) return Charts.say(box, `${body.detail} ${body.hint}`);
    const mine = body.find((one) => one.label === figure.dataset.label);
    if (!mine || mine.reason) return Charts.say(box, mine ? mine.reason : "Nothing is known of this search.");
    const list = document.createElement("dl");
    for (const [name, share] of Object.entries(mine.shares)) {
      const bar = draw("svg", { class: "bar", "aria-hidden": "true" }, draw("rect", { class: "complete", width: 100 * share + "%", height: "100%" }));
      const percent = Math.round(100 * share) + " %";
      const cells = [["dt", name], ["dd", bar], ["dd", percent]].map(([tag, content]) => { const node = document.createElement(tag); node.append(content); return node; });
      cells[2].className = "num";
      list.append(...cells);
    }
    const method = Object.assign(document.createElement("p"), { className: "quiet", textContent: `${mine.method}, from ${mine.n_trials} complete trials` });
    box.replaceChildren(list, method);
  }

  function drawAll() { if (found) { history(); scatter(); parallel(); } }

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
      if (!found) for (const name of ["history", "scatter", "parallel", "importance"]) Charts.say(part(name).querySelector(".plot"), "The data could not be loaded; reload the page.");
      console.warn(error);
    }
  }

  part("scatter").querySelector(".controls").addEventListener("change", scatter);
  document.addEventListener("admeta:changed", load);
  Charts.onRedraw(drawAll);
  load();
})();
