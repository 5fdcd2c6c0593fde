/* The explorer: sends the settings, draws what the server computed. No optimizer runs here. */
"use strict";
(() => {
  const form = document.getElementById("choice"), said = document.getElementById("said");
  const scrub = document.getElementById("scrub"), scrubbed = document.getElementById("scrubbed"), play = document.getElementById("play");
  const WAIT_MS = 150, W = 280, H = 210;
  let found = null, asking = null, timer = 0, playing = 0, contour = null;

  /* Numbers and their sliders, which are logarithmic where marked. */
  const sliders = [...form.querySelectorAll("[data-of]")];
  const toSlider = (slider) => { const value = Number(form.elements[slider.dataset.of].value); slider.value = "log" in slider.dataset ? Math.log10(value) : value; };
  const fromSlider = (slider) => { form.elements[slider.dataset.of].value = "log" in slider.dataset ? Number((10 ** slider.value).toPrecision(2)) : slider.value; };
  const set = (name, value) => { form.elements[name].value = value; const slider = sliders.find((one) => one.dataset.of === name); if (slider) toSlider(slider); };

  function query() {
    return new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  }

  function say(text) { said.textContent = text; said.hidden = !text; }

  async function load() {
    if (!form.checkValidity()) return say([...form.elements].filter((one) => one.validity && !one.validity.valid).map((one) => `${form.querySelector(`label[for="${one.id}"]`)?.textContent}: ${one.validationMessage}`).join(" "));
    const chosen = query().toString();
    asking?.abort();
    asking = new AbortController();
    document.body.classList.add("busy");
    try {
      const answer = await fetch("explorer.json?" + chosen, { signal: asking.signal });
      const body = await answer.json();
      if (answer.status === 429) return later(1000);
      if (!answer.ok) return say(Charts.told(body));
      say("");
      Address.replace(new URLSearchParams([...query(), ...[...Address.hidden].map((name) => ["hide", name])]));
      for (const link of document.querySelectorAll("[data-data]")) link.href = `explorer.${link.dataset.data}?${chosen}`;
      found = body;
      const steps = Number(form.elements.n_steps.value), atEnd = scrub.value === scrub.max;
      scrub.max = steps;
      if (atEnd || Number(scrub.value) > steps) scrub.value = steps;
      contour = null;
      drawAll();
      document.body.classList.remove("busy");
    } catch (error) {
      if (error.name !== "AbortError") say("The service does not answer; change a setting to try again.");
    }
  }

  function later(ms) { clearTimeout(timer); timer = setTimeout(load, ms); }

  const px = (x) => { const [low, high] = found.surface.window; return (W * (x - low)) / (high - low); };
  const py = (y) => { const [, , low, high] = found.surface.window; return H - (H * (y - low)) / (high - low); };
  const bound = (value) => Math.max(-9 * W, Math.min(9 * W, value)).toFixed(1);

  function drawDescent(figure, i) {
    const descent = found.descents[figure.dataset.descent], until = Math.min(Number(scrub.value), descent.x.length - 1);
    const surface = found.surface;
    contour = contour || Svg.contours(surface.x, surface.y, surface.height, surface.levels, px, py);
    const svg = Svg.draw("svg", { viewBox: `0 0 ${W} ${H}`, class: "c" + i });
    svg.append(Svg.draw("path", { class: "contour", d: contour }));
    svg.append(Svg.draw("circle", { class: "goal", cx: px(surface.minimum[0]), cy: py(surface.minimum[1]), r: 5 }));
    const points = descent.x.slice(0, until + 1).map((x, k) => bound(px(x)) + "," + bound(py(descent.y[k])));
    svg.append(Svg.draw("polyline", { class: "way", points: points.join(" ") }));
    if (until <= 120) for (const point of points) { const [cx, cy] = point.split(","); svg.append(Svg.draw("circle", { class: "stop", cx, cy, r: 1.8 })); }
    svg.append(Svg.draw("rect", { class: "from", x: px(found.start[0]) - 4, y: py(found.start[1]) - 4, width: 8, height: 8 }));
    const [cx, cy] = points[points.length - 1].split(",");
    svg.append(Svg.draw("circle", { class: "here", cx, cy, r: 5 }));
    figure.querySelector(".plot").replaceChildren(svg);
    const gone = descent.diverged_at !== null && Number(scrub.value) >= descent.diverged_at;
    const fate = figure.querySelector(".fate");
    fate.textContent = gone ? `diverged at step ${descent.diverged_at}` : `loss ${Charts.number(descent.loss[until])}`;
    fate.classList.toggle("bad", gone);
    figure.title = Object.entries(descent.settings).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join("\n");
  }

  const part = (name) => document.querySelector(`[data-plot=${name}] .plot`);
  const titles = () => [...document.querySelectorAll("[data-descent]")].map((figure) => figure.dataset.descent);

  function loss() {
    const all = titles().map((title) => found.descents[title].loss);
    const x = Array.from({ length: Math.max(...all.map((one) => one.length)) }, (_, i) => i);
    const data = [x, ...all.map((one) => x.map((i) => (one[i] > 0 && one[i] < 1e12 ? one[i] : null)))];
    Charts.plot(part("loss"), { x: "step", y: "loss (log)", data, logY: true, series: titles().map((label, i) => ({ label, stroke: Charts.color(i), width: 2, points: { show: false } })) });
  }

  function gain() {
    const names = Object.keys(found.filter.gain), colors = [0, 7, 1];
    Charts.plot(part("gain"), { x: "ω, radians a step (log)", y: "gain (log)", logX: true, logY: true, data: [found.filter.omega, ...names.map((name) => found.filter.gain[name])],
      series: names.map((label, i) => ({ label, stroke: Charts.color(colors[i]), width: 2, dash: i === 1 ? [5, 4] : undefined, points: { show: false } })) });
  }

  function response() {
    const names = Object.keys(found.response.share);
    Charts.plot(part("response"), { x: "steps since the change", y: "share of the settled update", data: [found.response.step, ...names.map((name) => found.response.share[name])],
      series: names.map((label, i) => ({ label, stroke: Charts.color(i), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) })) });
  }

  function stability() {
    const { beta, limit, cliff, here, stable, curvature } = found.stability, box = part("stability");
    const w = Math.max(280, box.clientWidth), h = 300, left = 58, right = 14, top = 12, bottom = 42, low = -3, high = 1.5;
    const at = (value) => left + value * (w - left - right), up = (s) => h - bottom - ((Math.log10(s) - low) / (high - low)) * (h - top - bottom);
    const inside = (s) => Math.max(top, Math.min(h - bottom, up(s)));
    const line = beta.map((b, i) => `${at(b).toFixed(1)} ${inside(limit[i]).toFixed(1)}`).join("L");
    const svg = Svg.draw("svg", { viewBox: `0 0 ${w} ${h}`, class: "region" });
    svg.append(Svg.draw("path", { class: "stable", d: `M${at(0)} ${h - bottom}L${line}L${at(beta[beta.length - 1])} ${h - bottom}Z` }));
    svg.append(Svg.draw("path", { class: "line", d: "M" + line }), Svg.draw("rect", { class: "frame", x: left, y: top, width: w - left - right, height: h - top - bottom }));
    for (const b of [0, 0.2, 0.4, 0.6, 0.8, 1]) svg.append(Svg.draw("text", { x: at(b), y: h - bottom + 16, "text-anchor": "middle" }, String(b)));
    for (const s of [0.001, 0.01, 0.1, 1, 10]) svg.append(Svg.draw("text", { x: left - 7, y: up(s) + 4, "text-anchor": "end" }, String(s)));
    svg.append(Svg.draw("text", { x: (left + w - right) / 2, y: h - 6, "text-anchor": "middle" }, "β"), Svg.draw("text", { transform: `translate(12 ${h / 2}) rotate(-90)`, "text-anchor": "middle" }, "s (log)"));
    if (cliff < 1) svg.append(Svg.draw("line", { class: "cliff", x1: at(cliff), x2: at(cliff), y1: top, y2: h - bottom }), Svg.draw("text", { x: at(cliff) + 5, y: top + 14 }, "cliff β* = " + Charts.number(cliff)));
    svg.append(Svg.draw("text", { x: at(0.02), y: h - bottom - 8 }, "stable"));
    svg.append(Svg.draw("line", { class: "cross", x1: at(here.beta), x2: at(here.beta), y1: top, y2: h - bottom }), Svg.draw("line", { class: "cross", x1: left, x2: w - right, y1: inside(here.s), y2: inside(here.s) }));
    svg.append(Svg.draw("circle", { class: "dot" + (stable ? "" : " top"), cx: at(here.beta), cy: inside(here.s), r: 7 }));
    svg.addEventListener("click", (event) => {
      const rect = svg.getBoundingClientRect(), b = ((event.clientX - rect.left) * (w / rect.width) - left) / (w - left - right);
      const s = 10 ** (low + ((h - bottom - (event.clientY - rect.top) * (h / rect.height)) / (h - top - bottom)) * (high - low));
      if (b < 0 || b > 0.99) return;
      set("beta", b.toFixed(2));
      set("lr", Math.min(10, Number((s / curvature).toPrecision(2))));
      load();
    });
    box.replaceChildren(svg);
    document.getElementById("verdict").textContent = `At β = ${here.beta} the limit is s = ${Charts.number(here.limit)}; here s = ${Charts.number(here.s)} (steepest curvature ${Charts.number(curvature)}): ${stable ? "stable." : "not stable without lookahead."}`;
  }

  function numbers() {
    const { dema_gain, noise_gain, sgdm_gain, adam_equivalent_lr, largest_stable_lr } = found.facts;
    const lines = [
      ["DEMA's steady gain", `${Charts.number(dema_gain)}: a steady gradient makes AdmetaS step ${Charts.number(dema_gain / sgdm_gain)} times as far as SGDM (${Charts.number(sgdm_gain)}) at the same rate`],
      ["DEMA's noise gain", `${Charts.number(noise_gain)}: what independent noise of deviation 1 becomes`],
      ["AdmetaR's rate for Adam's steps", `${Charts.number(adam_equivalent_lr)} where noise dominates the gradient`],
      ["Largest stable rate of AdmetaS", `${Charts.number(largest_stable_lr)} on this surface, without lookahead`],
    ];
    document.getElementById("numbers").replaceChildren(...lines.flatMap(([name, text]) => [Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: text })]));
  }

  function drawDescents() { scrubbed.textContent = scrub.value; document.querySelectorAll("[data-descent]").forEach(drawDescent); }
  function drawAll() { if (found) { drawDescents(); loss(); gain(); response(); stability(); numbers(); } }

  form.addEventListener("input", (event) => {
    const target = event.target;
    if (target.dataset.of) fromSlider(target);
    else if (target.name === "surface") {
      const { lr, adaptiveLr, nSteps } = target.selectedOptions[0].dataset;
      for (const [name, value] of [["lr", lr], ["adaptive_lr", adaptiveLr], ["n_steps", nSteps], ["x", ""], ["y", ""]]) set(name, value);
    } else sliders.filter((one) => one.dataset.of === target.name).forEach(toSlider);
    later(WAIT_MS);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); load(); });
  form.addEventListener("click", (event) => {
    const preset = event.target.dataset?.preset;
    if (!preset) return;
    for (const [name, value] of new URLSearchParams(preset)) set(name, value);
    load();
  });
  document.querySelector(".descents").addEventListener("click", (event) => {
    const svg = event.target.closest("svg");
    if (!svg || !found) return;
    const rect = svg.getBoundingClientRect(), [x0, x1, y0, y1] = found.surface.window;
    set("x", (x0 + ((event.clientX - rect.left) / rect.width) * (x1 - x0)).toFixed(2));
    set("y", (y1 - ((event.clientY - rect.top) / rect.height) * (y1 - y0)).toFixed(2));
    load();
  });
  scrub.addEventListener("input", () => found && drawDescents());
  function stop() { clearInterval(playing); playing = 0; play.textContent = "Play"; }
  play.addEventListener("click", () => {
    if (playing || !found) return stop();
    if (scrub.value === scrub.max) scrub.value = 0;
    play.textContent = "Stop";
    playing = setInterval(() => { scrub.value = Number(scrub.value) + 1; drawDescents(); if (scrub.value === scrub.max) stop(); }, 40);
  });
  Charts.onRedraw(drawAll);
  sliders.forEach(toSlider);
  load();
})();
