/* Draws figures marked data-chart from their data-source with uPlot; what a plot shows is the server's arithmetic. */
"use strict";
const Charts = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (i) => css("--c" + (i % 10));
  const number = (value) => {
    if (value === null || value === undefined) return "–";
    if (Math.abs(value) < 1e-12) return "0"; // what rounding leaves of zero
    return value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(2) : Number(value.toPrecision(4)).toString();
  };

  function say(box, text) {
    box.replaceChildren(Object.assign(document.createElement("p"), { className: "say", textContent: text }));
  }

  function axis(label, extra = {}) {
    return { label, stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") },
      font: "11px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18, ...extra };
  }

  /* A logarithmic axis has ticks at powers of ten; at 1, 2, 3, 5 and 7, too, where it spans less than two of them. */
  const isPower = (tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9;
  const LOG = {
    filter: (u, ticks) => {
      const few = ticks.filter(isPower).length < 3, all = ticks.length < 7;
      return ticks.map((tick) => (isPower(tick) || all || (few && [2, 3, 5, 7].includes(Number(tick.toExponential(0)[0]))) ? tick : null));
    },
    values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : Number(tick.toPrecision(1)).toString())),
  };

  const INTEGERS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7];
  const positive = (ys) => ys.map((value) => (value > 0 ? value : null)); // all that a logarithmic axis can show
  const isLog = (figure) => Boolean(figure.querySelector("[name=log]")?.checked);

  /* An error of the service without its sentences that name addresses or words of the API, which say nothing on a page. */
  const told = ({ detail, hint }) => `${detail} ${hint}`.split(/(?<=[.;])\s+/).filter((part) => !/\/v1\/|\/docs\b|next_cursor/.test(part)).join(" ").replace(/[; ]+$/, "");

  /* What is under the pointer, in words next to it; nothing: an empty text. */
  const bubble = Object.assign(document.createElement("p"), { className: "tip", hidden: true });
  document.body.append(bubble);
  function tip(text, event) {
    bubble.hidden = !text;
    if (!text) return;
    bubble.textContent = text;
    const { clientX: x, clientY: y } = event, { offsetWidth: width, offsetHeight: height } = bubble;
    bubble.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 4)) + "px";
    bubble.style.top = (y + height + 22 < innerHeight ? y + 16 : y - height - 10) + "px";
  }

  /* series: uPlot's, without the first; data: [x, ...y]. */
  function plot(box, { x, y, series, data, bands = [], hooks = {}, logX = false, logY = false, integerX = false, rangeY = null, sizes = null }) {
    box.plot?.destroy();
    box.replaceChildren();
    const shown = (u, v) => (v === null || v === undefined ? "" : number(v));
    const narrow = box.clientWidth < 480;
    box.plot = new uPlot({
      width: box.clientWidth, height: narrow ? 240 : 300, bands,
      hooks: { ...hooks, setSeries: [...(hooks.setSeries || []), (u, i, { show }) => show !== undefined && Address.changed(u)] },
      scales: { x: { time: false, ...(logX && { distr: 3, range: (u, low, high) => [low, high] }) }, y: logY ? { distr: 3 } : rangeY ? { range: rangeY } : {} },
      axes: [axis(x, sizes ? { splits: () => sizes, filter: (u, ticks) => ticks, values: (u, ticks) => ticks.map(number) } : logX ? LOG : integerX ? { incrs: INTEGERS } : {}), axis(y, { size: 58, ...(logY ? LOG : { values: (u, ticks) => ticks.map(number) }) })],
      cursor: { points: { size: 6 } },
      series: [{ label: x, value: shown }, ...series.map((one) => ({ value: shown, show: Address.isShown(one), ...one }))],
    }, logY ? [data[0], ...data.slice(1).map(positive)] : data, box);
  }

  /* Curves with bands: each of { label, note, i, median, low, high } at every x, `i` being its colour. */
  function banded(box, x, curves, options, line = {}) {
    const series = [], data = [x], bands = [];
    for (const one of curves) {
      const at = data.length, stroke = color(one.i);
      data.push(one.median, one.high, one.low);
      series.push({ label: one.label + (one.note || ""), stroke, width: 2, points: { show: x.length < 3 }, ...line });
      for (let k = 0; k < 2; k++) series.push({ stroke: stroke + "00", width: 0, points: { show: false }, class: "edge", label: one.label, ...line });
      bands.push({ series: [at + 1, at + 2], fill: stroke + (curves.length > 3 ? "14" : "2b") });
    }
    /* A hidden curve takes its band with it. */
    const together = (u, i, { show }) => {
      if (!i || (i - 1) % 3 || show === undefined) return;
      for (const k of [i + 1, i + 2]) if (u.series[k].show !== show) u.setSeries(k, { show });
    };
    plot(box, { series, bands, data, hooks: { setSeries: [together] }, ...options });
    box.querySelectorAll(".u-legend .edge").forEach((row) => row.remove());
  }

  /* The colour of an optimizer, by its place in the list of searches. */
  function colorOf(label) {
    const order = [...document.querySelectorAll("[data-live] .searches .label")].map((node) => node.textContent);
    return Math.max(0, order.indexOf(label));
  }

  const KINDS = {
    curves(box, found, figure) {
      const shown = found.series.map((one, i) => ({ ...one, i, note: ` (${one.n_runs})` })).filter((one) => one.n_runs > 0);
      if (!found.x.length) return say(box, "No run has been evaluated: a curve begins with the first epoch.");
      banded(box, found.x, shown, { x: found.axis, y: found.metric, logY: isLog(figure), integerX: found.axis !== "seconds" });
    },
    /* Where the trials set no bound, the band reaches the best value that is drawn. */
    expected(box, found, figure) {
      const rows = (found.optimizers.length ? found.optimizers : found.rows).filter((row) => row.best_of_n.median.length);
      if (!rows.length) return say(box, "No trial has ended.");
      const most = Math.max(...rows.map((row) => row.best_of_n.median.length)), maximize = found.direction === "maximize";
      const x = Array.from({ length: most }, (_, i) => i + 1), ends = rows.flatMap(({ best_of_n: of }) => [...of.median, ...of.low, ...of.high]);
      const known = ends.filter((value) => value !== null);
      if (!known.length) return say(box, "All trials that have ended diverged.");
      const best = maximize ? Math.max(...known) : Math.min(...known);
      const upTo = (of, side, open) => x.map((n) => (n > of.median.length ? null : of[side][n - 1] ?? (open ? best : null)));
      const curves = rows.map((row) => ({ label: row.label, i: colorOf(row.label), median: upTo(row.best_of_n, "median"), low: upTo(row.best_of_n, "low", !maximize), high: upTo(row.best_of_n, "high", maximize) }));
      banded(box, x, curves, { x: "trials", y: found.metric, logY: isLog(figure), integerX: true });
    },
    reached(box, found) {
      const rows = found.rows.filter((row) => row.target);
      const x = [...new Set([0, ...rows.flatMap((row) => row.target.reached.times)])].sort((a, b) => a - b);
      if (x.length < 2) return say(box, "No run has reached the target.");
      x.push(x[x.length - 1] * 1.1); // the last step is seen
      const until = ({ times }, values, before) => x.map((at) => { const n = times.filter((time) => time <= at).length; return n ? values[n - 1] : before; });
      const curves = rows.map(({ label, target: { n, n_reached, reached: of } }) => ({ label, note: ` (${n_reached}/${n})`, i: colorOf(label), median: until(of, of.share, 0), low: until(of, of.low, 0), high: until(of, of.high, of.before) }));
      banded(box, x, curves, { x: "seconds of training", y: "share of runs" }, { paths: uPlot.paths.stepped({ align: 1 }) });
    },
    /* The mean over a parameter; a large dot at the chosen value, a hollow one at the worst result where a run diverged. */
    sensitivity(box, found, figure) {
      const curves = found.curves.filter((one) => one.points.length > 1), means = curves.flatMap((one) => one.points.map(({ mean }) => mean)).filter((mean) => mean !== null);
      if (!means.length) return say(box, "No sensitivity run has ended yet.");
      const worst = found.direction === "maximize" ? Math.min(...means) : Math.max(...means), tables = [], series = [], bands = [];
      for (const one of curves) {
        const at = series.length + 1, stroke = color(colorOf(one.label)), edge = { label: one.label, stroke: stroke + "00", width: 0, class: "edge", points: { show: false } };
        const of = (value) => one.points.map((point) => value(point) ?? null), off = (sign) => of(({ mean, std }) => (mean === null || std === null ? null : mean + sign * std));
        tables.push([of(({ value }) => value), of(({ mean }) => mean), off(1), off(-1), of(({ mean }) => (mean === null ? worst : null)), of(({ value, mean }) => (value === one.chosen ? mean : null))]);
        const dots = (size, fill) => ({ ...edge, points: { show: true, size, stroke, fill } });
        series.push({ label: one.label, stroke, width: 2, spanGaps: true, points: { show: true, size: 5 } }, { ...edge, spanGaps: true }, { ...edge, spanGaps: true }, dots(9, "transparent"), dots(12, stroke));
        bands.push({ series: [at + 1, at + 2], fill: stroke + "2b" });
      }
      const together = (u, i, { show }) => {
        if (!i || (i - 1) % 5 || show === undefined) return;
        for (let k = i + 1; k < i + 5; k++) if (u.series[k].show !== show) u.setSeries(k, { show });
      };
      plot(box, { x: found.parameter, y: found.metric, series, bands, data: uPlot.join(tables), hooks: { setSeries: [together] }, logX: curves.every((one) => one.log), logY: isLog(figure) });
      box.querySelectorAll(".u-legend .edge").forEach((row) => row.remove());
    },
    /* Trials by the metric and another objective, each a link: an optimizer's front in steps, the dominated ones faint. */
    pareto(box, found) {
      const [metric, other] = found.objectives, fronts = found.fronts.filter((one) => one.trials.length && Address.isShown(one));
      if (!fronts.length) return say(box, "No trial is complete.");
      const trials = fronts.flatMap((one) => one.trials), ends = (k) => [Math.min(...trials.map(({ values }) => values[k])), Math.max(...trials.map(({ values }) => values[k]))];
      const width = Math.max(280, box.clientWidth), height = width < 480 ? 260 : 320, [low, high] = ends(1), log = low > 0 && high / low >= 10;
      const svg = Svg.draw("svg", { class: "fronts", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Trials by ${metric.metric} and ${other.metric}` });
      const across = Svg.scaleBetween(low, high, log), up = Svg.scaleBetween(...ends(0), false);
      const { px, py } = Svg.axes(svg, { width, height, left: 66, right: 16, top: 10, bottom: 40, across, up, x: other.metric, y: metric.metric, few: width < 480 });
      const at = ({ values: [y, x] }) => [px(across.at(x)), py(up.at(y))];
      const key = Object.assign(document.createElement("p"), { className: "key quiet" });
      const dot = (one, ink) => {
        const [cx, cy] = at(one).map((place) => place.toFixed(1)), text = `${one.label}, trial ${one.trial}: ${found.objectives.map(({ metric: name }, k) => `${name} ${number(one.values[k])}`).join(", ")}${one.on_front ? ", on the front" : ""}`;
        const circle = Svg.draw("circle", { class: "dot", cx, cy, r: one.on_front ? 5 : 3.5, color: ink, "fill-opacity": one.on_front ? 1 : 0.22 }, Svg.draw("title", {}, text));
        return Svg.draw("a", { href: `${box.closest("figure").dataset.trials}${encodeURIComponent(one.label)}/${one.trial}`, "aria-label": text, tabindex: one.on_front ? 0 : -1 }, circle);
      };
      for (const one of fronts) svg.append(...one.trials.filter((trial) => !trial.on_front).slice(0, 1000).map((trial) => dot(trial, color(colorOf(one.label)))));
      for (const one of fronts) {
        const ink = color(colorOf(one.label)), sign = other.direction === "maximize" ? -1 : 1, front = one.trials.filter((trial) => trial.on_front).sort((a, b) => sign * (a.values[1] - b.values[1]));
        const steps = front.map(at).map(([x, y], i) => (i ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
        svg.append(Svg.draw("path", { d: steps, fill: "none", stroke: ink, "stroke-width": 2 }), ...front.map((trial) => dot(trial, ink)));
        const item = document.createElement("span"), swatch = Svg.draw("svg", { class: "swatch", width: 14, height: 9, viewBox: "0 0 14 9" }, Svg.draw("rect", { width: 14, height: 9, fill: ink }));
        item.append(swatch, Object.assign(document.createElement("b"), { textContent: one.label + (one.hypervolume === null ? "" : `, hypervolume ${number(one.hypervolume)}`) }));
        key.append(item);
      }
      svg.addEventListener("pointermove", (event) => tip(event.target.classList.contains("dot") ? event.target.textContent : "", event));
      svg.addEventListener("pointerleave", () => tip(""));
      const reference = Object.assign(document.createElement("p"), { className: "key quiet", textContent: found.hypervolume === null ? "" : `Hypervolumes from the worst values: ${found.objectives.map((one, k) => `${one.metric} ${number(found.reference[k])}`).join(", ")}.` });
      box.replaceChildren(svg, key, reference);
    },
    /* Best values over size; at the predicted size a large dot with its interval, and a hollow one where trials were best. */
    ladder(box, found, figure) {
      const select = figure.querySelector("[name=parameter]"), known = [...select.options].map((option) => option.text);
      const names = [...new Set(found.curves.flatMap((one) => one.fits.map(({ parameter }) => parameter)))];
      names.filter((name) => !known.includes(name)).forEach((name) => select.add(new Option(name)));
      const chosen = select.value, tables = [], series = [], bands = [];
      found.curves.forEach((one, i) => {
        const fit = one.fits.find(({ parameter }) => parameter === chosen);
        if (!fit) return;
        const known = fit.predicted === null ? [] : [found.predict], at = series.length + 1, stroke = color(i), edge = { label: one.label, stroke: stroke + "00", width: 0, class: "edge", points: { show: false } };
        const of = (name, end) => [...fit.best.map((best) => best[name]), ...known.map(() => end)];
        const sweep = one.sweep?.parameter === chosen ? one.sweep.best : null;
        tables.push([[...fit.best.map(({ size }) => size), ...known], of("value", null), of("high", fit.high), of("low", fit.low), fit.best.map(() => null).concat(known.map(() => fit.predicted)), fit.best.map(() => null).concat(known.map(() => sweep))]);
        const dots = (size, fill) => ({ ...edge, points: { show: true, size, stroke, fill } });
        series.push({ label: one.label, stroke, width: 2, spanGaps: true, points: { show: true, size: 5 } }, { ...edge, spanGaps: true }, { ...edge, spanGaps: true }, dots(12, stroke), dots(9, "transparent"));
        bands.push({ series: [at + 1, at + 2], fill: stroke + "2b" });
      });
      if (!tables.length) return say(box, "No trial is complete.");
      const together = (u, i, { show }) => {
        if (!i || (i - 1) % 5 || show === undefined) return;
        for (let k = i + 1; k < i + 5; k++) if (u.series[k].show !== show) u.setSeries(k, { show });
      };
      plot(box, { x: found.field, y: chosen, series, bands, data: uPlot.join(tables), hooks: { setSeries: [together] }, logX: true, sizes: [...found.values, found.predict], logY: isLog(figure) });
      box.querySelectorAll(".u-legend .edge").forEach((row) => row.remove());
    },
    speedup(box, found) {
      const sizes = [...found.values, found.predict], curves = [];
      found.curves.forEach((one, i) => {
        if (!one.speedups.length) return;
        const of = (name) => sizes.map((size) => one.speedups.find((at) => at.size === size)?.[name] ?? null);
        curves.push({ label: one.label, i, median: of("speedup"), low: of("low"), high: of("high") });
      });
      if (!curves.length) return say(box, `Nothing to compare yet: both an optimizer and ${found.against} need a complete trial at a size.`);
      banded(box, sizes, curves, { x: found.field, y: `times ${found.against}`, logX: true, sizes }, { points: { show: true, size: 5 } });
    },
    profile(box, found, figure) {
      const there = found.optimizers.map((one, i) => ({ name: one.name, i, ...one[figure.dataset.of] })).filter((one) => one.tau);
      const taus = [...new Set(there.flatMap((one) => one.tau))].sort((a, b) => a - b);
      const data = [taus, ...there.map(({ tau, rho }) => taus.map((at) => rho[tau.findLastIndex((corner) => corner <= at)]))];
      const series = there.map((one) => ({ label: one.name, stroke: color(one.i), width: 2, stepped: true, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }));
      plot(box, { x: figure.dataset.of === "by_time" ? "τ: time over the fastest one's" : "standard deviations behind the best", y: "share of tasks", series, data, rangeY: [0, 1.02] });
    },
    /* Rows of optimizers, best first; bars on the right join those that are not shown to be different. */
    ranks(box, found) {
      const W = box.clientWidth, ROW = 24, TOP = 34, groups = found.ranks.groups.filter((names) => names.length > 1);
      const right = 14 + 10 * groups.length, most = Math.max(8, Math.floor((W * 0.45) / 6.5)), shown = found.optimizers.map(({ name }) => (name.length > most ? name.slice(0, most - 1) + "…" : name));
      const left = 22 + 6.5 * Math.max(...shown.map((name) => name.length)), n = found.optimizers.length, H = TOP + ROW * n + 6;
      const px = (rank) => left + ((rank - 1) * (W - left - right)) / Math.max(1, n - 1), py = (i) => TOP + ROW * (i + 0.5);
      const svg = Svg.draw("svg", { viewBox: `0 0 ${W} ${H}` }), add = (...what) => svg.append(Svg.draw(...what));
      const best = found.optimizers[0].mean_rank, reach = found.ranks.critical_difference;
      if (reach !== null) add("rect", { x: px(best), y: TOP, width: px(Math.min(n, best + reach)) - px(best), height: H - TOP - 6, fill: css("--soft") });
      const step = Math.ceil(n / Math.max(2, (W - left - right) / 26));
      for (let rank = 1; rank <= n; rank += step) {
        add("line", { x1: px(rank), x2: px(rank), y1: TOP, y2: H - 6, stroke: css("--line") });
        add("text", { x: px(rank), y: TOP - 6, "text-anchor": "middle" }, String(rank));
      }
      add("text", { class: "name", x: left, y: 12 }, "mean rank, 1 is the best");
      found.optimizers.forEach((one, i) => {
        const label = Svg.draw("text", { class: "name", x: 0, y: py(i) + 4 }, shown[i]);
        label.append(Svg.draw("title", {}, `${one.name}: ${number(one.mean_rank)}`));
        svg.append(label);
        add("circle", { cx: px(one.mean_rank), cy: py(i), r: 5, fill: color(i) });
      });
      groups.forEach((names, k) => {
        const rows = names.map((name) => found.optimizers.findIndex((one) => one.name === name)), x = W - right + 12 + 10 * k;
        add("line", { x1: x, x2: x, y1: py(Math.min(...rows)) - 6, y2: py(Math.max(...rows)) + 6, stroke: css("--ink"), "stroke-width": 4 });
      });
      box.replaceChildren(svg);
    },
    runs(box, found, figure) {
      const select = figure.querySelector("[name=metric]");
      const names = [...new Set(found.flatMap((run) => Object.keys(run.metrics)))];
      const known = [...select.options].map((option) => option.text);
      names.filter((name) => !known.includes(name)).forEach((name) => select.add(new Option(name)));
      const drawn = found.map((run, i) => ({ ...run, i, y: select.value ? run.metrics[select.value] || [] : run.value })).filter((run) => run.epoch.length);
      if (!drawn.length) return say(box, "No run has been evaluated: a curve begins with the first epoch.");
      const tables = drawn.map((run) => [run.epoch, run.epoch.map((_, k) => run.y[k] ?? null)]);
      const series = drawn.map((run) => ({ label: run.name, stroke: color(run.i), width: 2, spanGaps: true, points: { show: run.epoch.length < 30, size: 4 } }));
      plot(box, { x: "epoch", y: select.selectedOptions[0].text, series, data: uPlot.join(tables), logY: isLog(figure), integerX: true });
    },
  };

  const ASKING = ["curves", "pareto"]; // whose controls choose the data, not only how they are drawn

  function asked(figure) {
    const form = figure.querySelector(".controls");
    const chosenBy = form && ASKING.includes(figure.dataset.chart) ? new FormData(form) : null;
    chosenBy?.delete("log"); // how it is drawn; the data is the same
    const chosen = chosenBy ? new URLSearchParams(chosenBy).toString() : "";
    for (const [mark, kind] of [["[data-json]", ".json"], ["[data-csv]", ".csv"]]) {
      const link = figure.querySelector(mark);
      if (link) link.href = figure.dataset.source.replace(".json", kind) + (chosen ? "?" + chosen : "");
    }
    return figure.dataset.source + (chosen ? "?" + chosen : "");
  }

  /* The status and the content of an answer; figures that ask for the same at the same time share it. */
  const asking = new Map();
  function answerOf(url) {
    if (!asking.has(url)) asking.set(url, fetch(url).then(async (answer) => [answer.ok, await answer.json()]).finally(() => asking.delete(url)));
    return asking.get(url);
  }

  async function load(figure) {
    const box = figure.querySelector(".plot");
    const url = asked(figure);
    if (!box.plot) say(box, "Loading…");
    try {
      const [isOk, found] = await answerOf(url);
      if (!isOk) return say(box, told(found));
      if (url !== asked(figure)) return; // another choice was made meanwhile
      const select = figure.dataset.chart === "curves" && figure.querySelector("[name=metric]");
      const isKnown = select && found.metrics.includes(select.value); // an address may name one that is not there
      if (select && (!isKnown || select.options.length < found.metrics.length)) {
        const kept = isKnown ? select.value : found.metric;
        select.replaceChildren(...found.metrics.map((name) => new Option(name)));
        select.value = kept;
      }
      figure.found = found;
      box.plot = box.plot || null;
      KINDS[figure.dataset.chart](box, found, figure);
    } catch (error) {
      say(box, "The data could not be loaded; the page tries again with the next change, or reload it.");
      console.warn(error);
    }
  }

  function redraw(figure) {
    if (figure.found) KINDS[figure.dataset.chart](figure.querySelector(".plot"), figure.found, figure);
  }

  const figures = [...document.querySelectorAll("[data-chart]")];
  for (const figure of figures) {
    load(figure);
    figure.querySelector(".controls")?.addEventListener("change", () => (ASKING.includes(figure.dataset.chart) ? load(figure) : redraw(figure)));
  }
  document.addEventListener("admeta:changed", () => { asking.clear(); figures.forEach(load); }); // what is on its way is of before
  document.addEventListener("address:hidden", () => figures.filter((one) => one.dataset.chart === "pareto").forEach(redraw));

  /* Calls back when drawings must be repeated: another width, other colours, or printing. */
  function onRedraw(draw) {
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", draw);
  }
  onRedraw(() => figures.forEach(redraw));
  return { plot, say, tip, told, isLog, css, color, number, onRedraw };
})();
