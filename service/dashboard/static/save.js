/* Every figure as an SVG and a PNG file, with its title and the names of its series. */
"use strict";
(() => {
  const STYLES = ["fill", "fill-opacity", "font-family", "font-size", "font-weight", "opacity", "paint-order", "stroke", "stroke-dasharray", "stroke-width", "text-anchor", "shape-rendering"];
  const FONT = { "font-family": "system-ui, sans-serif", "font-size": "11px" }, HEAD = 28, ROW = 18;
  const text = (x, y, content, more = {}) => Svg.draw("text", { x, y, fill: Charts.css("--ink"), ...FONT, ...more }, content);

  /* A drawing of the page with its computed styles, at its place in the figure. */
  function copied(svg, box) {
    const copy = svg.cloneNode(true), at = svg.getBoundingClientRect(), from = [svg, ...svg.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
      const style = getComputedStyle(from[i]);
      for (const name of STYLES) node.setAttribute(name, style.getPropertyValue(name)); // a style attribute would be against the policy
    });
    for (const [name, value] of Object.entries({ x: at.left - box.left, y: at.top - box.top + HEAD, width: at.width, height: at.height })) copy.setAttribute(name, value);
    return copy;
  }

  /* Text of the page in the figure, such as the names of bars. */
  function written(node, box) {
    const at = node.getBoundingClientRect(), style = getComputedStyle(node), end = style.textAlign === "right";
    return text((end ? at.right : at.left) - box.left, (at.top + at.bottom) / 2 - box.top + HEAD + 4, node.textContent, { fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight, "text-anchor": end ? "end" : "start" });
  }

  /* The curves of a uPlot, drawn again: its canvas has no SVG. */
  function redrawn(u) {
    const ratio = devicePixelRatio, { left, top, width, height } = Object.fromEntries(Object.entries(u.bbox).map(([name, value]) => [name, value / ratio]));
    const group = Svg.draw("g", { transform: `translate(${left} ${top + HEAD})` }), quiet = Charts.css("--quiet"), line = Charts.css("--line");
    group.append(Svg.draw("rect", { width, height, fill: "none", stroke: line }));
    u.axes.forEach((axis, k) => axis._splits.forEach((split, i) => {
      const at = u.valToPos(split, k ? "y" : "x"), label = axis._values[i];
      if (at < 0 || at > (k ? height : width) || label === null || label === "") return;
      group.append(Svg.draw("line", k ? { x2: width, y1: at, y2: at, stroke: line } : { x1: at, x2: at, y2: height, stroke: line }));
      group.append(text(k ? -6 : at, k ? at + 4 : height + 16, String(label), { "text-anchor": k ? "end" : "middle", fill: quiet }));
    }));
    group.append(text(width / 2, height + 34, u.axes[0].label, { "text-anchor": "middle" }));
    group.append(Svg.draw("g", { transform: `translate(${12 - left} ${height / 2}) rotate(-90)` }, text(0, 0, u.axes[1].label, { "text-anchor": "middle" })));
    const point = (s, i) => [u.valToPos(u.data[0][i], "x"), u.valToPos(u.data[s][i], "y")].map((value) => value.toFixed(1));
    const there = (s) => u.data[0].map((_, i) => i).filter((i) => u.data[s][i] !== null && u.data[s][i] !== undefined);
    for (const band of u.bands || []) {
      const [high, low] = band.series;
      if (!u.series[high].show || !u.series[low].show) continue;
      const edge = [...there(high).map((i) => point(high, i)), ...there(low).reverse().map((i) => point(low, i))];
      group.append(Svg.draw("polygon", { points: edge.join(" "), fill: band.fill(u, 0) }));
    }
    u.series.forEach((series, s) => {
      if (!s || !series.show || series.class === "edge") return;
      const stroke = series.stroke(u, s), points = there(s).map((i) => point(s, i));
      if (series.width) {
        const steps = series.stepped ? points.flatMap((one, i) => (i ? [[one[0], points[i - 1][1]], one] : [one])) : points;
        group.append(Svg.draw("polyline", { points: steps.join(" "), fill: "none", stroke, "stroke-width": series.width }));
      } else for (const [cx, cy] of points) group.append(Svg.draw("circle", { cx, cy, r: 3.5, stroke, fill: series.points.fill(u, s) }));
    });
    return group;
  }

  function drawing(figure) {
    const plot = figure.querySelector(".plot"), box = plot.getBoundingClientRect(), parts = [], u = plot.plot;
    const named = u ? u.series.filter((series, s) => s && series.show && series.class !== "edge") : [];
    const body = u ? u.height : plot.scrollHeight, height = HEAD + body + ROW * named.length + 8;
    parts.push(Svg.draw("rect", { width: box.width, height, fill: Charts.css("--card") }));
    parts.push(text(8, 18, figure.querySelector("h2, h3").textContent, { "font-size": "14px", "font-weight": 600 }));
    if (u) parts.push(redrawn(u));
    else {
      plot.querySelectorAll("svg:not(svg svg)").forEach((svg) => parts.push(copied(svg, box)));
      plot.querySelectorAll("dt, dd:not(:has(svg)), p:not(.key, .say)").forEach((node) => parts.push(written(node, box)));
      plot.querySelectorAll(".key span").forEach((node) => parts.push(written(node.lastElementChild, box)));
    }
    named.forEach((series, i) => {
      const y = HEAD + body + ROW * i;
      parts.push(Svg.draw("rect", { x: 8, y: y + 3, width: 10, height: 10, fill: series.stroke(u, u.series.indexOf(series)) }), text(24, y + 12, series.label));
    });
    const svg = Svg.draw("svg", { xmlns: "http://www.w3.org/2000/svg", width: box.width, height, viewBox: `0 0 ${box.width} ${height}` }, ...parts);
    return { width: box.width, height, address: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(svg)) };
  }

  async function asPng({ width, height, address }) {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/png");
  }

  for (const figure of document.querySelectorAll("figure:has(.plot)")) {
    const links = figure.querySelector(".links") || figure.appendChild(Object.assign(document.createElement("p"), { className: "links" }));
    for (const kind of ["SVG", "PNG"]) {
      const link = Object.assign(document.createElement("a"), { href: "#", textContent: kind });
      link.addEventListener("click", async (event) => {
        event.preventDefault();
        if (!figure.querySelector(".plot svg, .plot canvas")) return; // nothing is drawn yet
        const drawn = drawing(figure), name = `${document.title.split(" · ").slice(0, -1).join("-")}-${figure.querySelector("h2, h3").textContent}.${kind.toLowerCase()}`;
        Object.assign(document.createElement("a"), { download: name.replaceAll(/[^\w.-]+/g, "-"), href: kind === "PNG" ? await asPng(drawn) : drawn.address }).click();
      });
      links.append(" ", link);
    }
  }
})();
