/* Keeps what is chosen on a page in its address, so that reloading, going back and a link show the same: the controls of
   figures, the filters and the order of the trials, hidden series. The other scripts come after it. */
"use strict";
const Address = (() => {
  const KEPT = ".controls [name]:not([type=hidden]), #trial-filters [name], [form=compare][name]";
  const GROWING = ["metric", "x", "y", "attempt"]; // selects whose options come with the data
  const query = () => new URLSearchParams(location.search);
  const get = (name) => query().get(name);
  const all = (name) => query().getAll(name);

  function replace(asked) {
    const text = asked.toString();
    history.replaceState(history.state, "", location.pathname + (text && "?" + text) + location.hash);
  }

  /* Writes the values of a name; without any the name is left out. */
  function set(name, ...values) {
    const asked = query();
    asked.delete(name);
    for (const value of values) asked.append(name, value);
    replace(asked);
  }

  /* Names of one page differ by figure: curves.metric, history.log. */
  function nameOf(input) {
    const { chart, part, log } = input.closest("[data-chart], [data-part], [data-log]")?.dataset ?? {};
    const figure = chart ?? part ?? (log === undefined ? "" : "log");
    return figure ? `${figure}.${input.name}` : input.name;
  }

  function restore(input) {
    const value = get(nameOf(input));
    if (value === null) return;
    if (input.type === "checkbox") input.checked = query().getAll(nameOf(input)).includes(input.value);
    else if (input.tagName !== "SELECT") input.value = value;
    else {
      const isThere = () => [...input.options].some((option) => option.value === value);
      if (GROWING.includes(input.name) && !isThere()) input.add(new Option(value));
      if (isThere()) input.value = value;
    }
  }

  function keep(input) {
    const name = nameOf(input);
    if (input.type === "checkbox") {
      const boxes = [...document.querySelectorAll(KEPT)].filter((one) => one.checked && nameOf(one) === name);
      return set(name, ...boxes.map((one) => one.value));
    }
    const isDefault = !GROWING.includes(input.name) && input.value === (input.options?.[0].value ?? "");
    set(name, ...(isDefault ? [] : [input.value]));
  }

  document.querySelectorAll(KEPT).forEach(restore);
  document.addEventListener("input", (event) => event.target.matches(KEPT) && keep(event.target), true);

  /* A list that a filter asked for may come after a box was ticked: what is ticked now counts, not what was sent. */
  const boxes = () => document.querySelectorAll("[form=compare][type=checkbox]");
  let ticked = new Map();
  document.addEventListener("htmx:beforeSwap", () => { ticked = new Map([...boxes()].map((box) => [box.value, box.checked])); });
  document.addEventListener("htmx:afterSettle", () => {
    for (const box of boxes()) {
      const was = ticked.get(box.value) ?? box.checked;
      if (was !== box.checked) { box.checked = was; keep(box); }
    }
  });

  /* Series are hidden by their names, without the numbers of runs, in all plots of the page. */
  const hidden = new Set(query().getAll("hide"));
  const named = (series) => String(series.label).replace(/ \(\d+(\/\d+)?\)$/, "");
  const isShown = (series) => !hidden.has(named(series));

  /* To be called when a plot has shown or hidden one of its series. */
  function changed(plot) {
    for (const one of plot.series.slice(1)) if (one.class !== "edge") hidden[one.show ? "delete" : "add"](named(one));
    set("hide", ...hidden);
    document.dispatchEvent(new Event("address:hidden"));
    for (const { plot: other } of document.querySelectorAll(".plot"))
      if (other && other !== plot) other.series.forEach((one, i) => i && one.show !== isShown(one) && other.setSeries(i, { show: isShown(one) }, false));
  }

  return { get, all, set, replace, isShown, changed, hidden };
})();
